#include "isa/limits.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "isa/kernels.h"
#include "program/memory.h"

namespace qeff {

namespace {

constexpr size_t kBufferBytes = size_t{256} << 20;  // larger than any cache
constexpr int kReadings = 6;
// Short ones, of about a millisecond, and many: one at least will not be interrupted.
constexpr int kRuns = 60;
constexpr int64_t kRounds = 1 << 17;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Job {
  const uint64_t* data;
  size_t words;  // for each member
  const PeakKernels* peak;
  std::vector<uint64_t> sink;  // by member: keeps the reads from being left out
};

void read_all(void* context, int member) {
  Job& job = *static_cast<Job*>(context);
  const uint64_t* at = job.data + job.words * static_cast<size_t>(member);
  uint64_t sums[8] = {};
  for (size_t i = 0; i + 8 <= job.words; i += 8) {
    for (size_t j = 0; j < 8; ++j) sums[j] += at[i + j];
  }
  for (const uint64_t sum : sums) job.sink[static_cast<size_t>(member)] += sum;
}

void multiply_int8(void* context, int member) {
  Job& job = *static_cast<Job*>(context);
  job.sink[static_cast<size_t>(member)] += static_cast<uint64_t>(job.peak->run_int8(kRounds));
}

void multiply_floats(void* context, int member) {
  Job& job = *static_cast<Job*>(context);
  job.sink[static_cast<size_t>(member)] += static_cast<uint64_t>(job.peak->run_floats(kRounds));
}

// The shortest of several runs of a job, in seconds.
double best_time(ThreadPool& pool, ThreadPool::Job run, Job& job, int num_runs) {
  double best = 1e9;
  for (int i = 0; i < num_runs; ++i) {
    const auto start = std::chrono::steady_clock::now();
    pool.run(run, &job);
    best = std::min(best, seconds_since(start));
  }
  return best;
}

}  // namespace

Limits measure_limits(int num_threads) {
  if (num_threads < 1 || num_threads > 1024)
    throw Error(ErrorCode::kRequest, "the number of threads must lie between 1 and 1024");
  ThreadPool pool(num_threads);
  const AlignedMemory buffer(kBufferBytes);
  std::memset(buffer.data(), 1, kBufferBytes);
  Job job{reinterpret_cast<const uint64_t*>(buffer.data()), kBufferBytes / 8 / static_cast<size_t>(num_threads),
          choose_kernels("").peak, std::vector<uint64_t>(static_cast<size_t>(num_threads))};
  const double bytes = static_cast<double>(job.words * 8) * num_threads;
  const double rounds = static_cast<double>(kRounds) * num_threads;
  return {bytes / best_time(pool, read_all, job, kReadings),
          rounds * job.peak->num_int8 / best_time(pool, multiply_int8, job, kRuns),
          rounds * job.peak->num_floats / best_time(pool, multiply_floats, job, kRuns)};
}

}  // namespace qeff
