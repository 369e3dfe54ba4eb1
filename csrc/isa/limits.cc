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
constexpr int kRounds = 6;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Job {
  const uint64_t* data;
  size_t words;  // for each member
  int64_t iterations;
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

void multiply_all(void* context, int member) {
  Job& job = *static_cast<Job*>(context);
  job.sink[static_cast<size_t>(member)] += static_cast<uint64_t>(job.peak->run(job.iterations));
}

}  // namespace

Limits measure_limits(int num_threads) {
  if (num_threads < 1 || num_threads > 1024)
    throw Error(ErrorCode::kRequest, "the number of threads must lie between 1 and 1024");
  ThreadPool pool(num_threads);
  const AlignedMemory buffer(kBufferBytes);
  std::memset(buffer.data(), 1, kBufferBytes);
  Job job{reinterpret_cast<const uint64_t*>(buffer.data()), kBufferBytes / 8 / static_cast<size_t>(num_threads),
          1 << 22, choose_kernels("").peak, std::vector<uint64_t>(static_cast<size_t>(num_threads))};
  Limits limits{0, 0};
  for (int round = 0; round < kRounds; ++round) {
    auto start = std::chrono::steady_clock::now();
    pool.run(read_all, &job);
    const double bytes = static_cast<double>(job.words * 8) * num_threads;
    limits.bytes_per_second = std::max(limits.bytes_per_second, bytes / seconds_since(start));
    start = std::chrono::steady_clock::now();
    pool.run(multiply_all, &job);
    const double products = static_cast<double>(job.iterations) * job.peak->products * num_threads;
    limits.int8_products_per_second = std::max(limits.int8_products_per_second, products / seconds_since(start));
  }
  return limits;
}

}  // namespace qeff
