// How fast attention is, and how far from what the processor could do.
//
// Usage: attention_bench [isa] [num_threads]. Times are the best of several runs, of the thread that takes longest, not
// counting what other programs take; the floors are the products at the rate of multiply-adds from registers and the
// bytes of keys and values at the measured rate of reading memory.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "isa/kernels.h"
#include "isa/limits.h"

using namespace qeff;

namespace {

// Of the calling thread: what other programs take does not count.
double cpu_seconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// The seconds that work takes on the thread that takes longest, the best of several runs.
double best_seconds(int num_runs, int num_threads, const std::function<void(int)>& work) {
  double best = 1e9;
  for (int i = 0; i < num_runs; ++i) {
    std::vector<double> seconds(static_cast<size_t>(num_threads));
    const auto timed = [&](int thread) {
      const double begin = cpu_seconds();
      work(thread);
      seconds[static_cast<size_t>(thread)] = cpu_seconds() - begin;
    };
    std::vector<std::thread> others;
    for (int thread = 1; thread < num_threads; ++thread) others.emplace_back(timed, thread);
    timed(0);
    for (auto& other : others) other.join();
    best = std::min(best, *std::max_element(seconds.begin(), seconds.end()));
  }
  return best;
}

struct Shape {
  const char* name;
  int64_t num_heads, num_kv_heads, dim;
};

struct Run {
  Shape shape;
  CacheFormat format;
  int64_t num_before, num_tokens, num_spans;
};

// Seconds for one layer: all tokens of a step, keys and values already written.
double measure(const AttentionKernels& kernels, const Run& run, int num_threads, double* write_seconds) {
  const auto [name, num_heads, num_kv_heads, dim] = run.shape;
  const int64_t rows = run.num_before + run.num_tokens, blocks_each = (rows + kCacheBlockLen - 1) / kCacheBlockLen;
  const int64_t head_bytes = kernels.head_bytes(run.format, dim, dim), block_bytes = head_bytes * num_kv_heads;
  const auto bytes = static_cast<size_t>(block_bytes * blocks_each * run.num_spans);
  const std::unique_ptr<uint8_t, void (*)(void*)> data(static_cast<uint8_t*>(std::aligned_alloc(64, bytes)), std::free);
  std::memset(data.get(), 0, bytes);
  std::vector<std::vector<int32_t>> tables(static_cast<size_t>(run.num_spans));
  std::vector<SpanView> spans;
  std::vector<int64_t> positions;
  for (int64_t s = 0; s < run.num_spans; ++s) {
    auto& table = tables[static_cast<size_t>(s)];
    for (int64_t i = 0; i < blocks_each; ++i) table.push_back(static_cast<int32_t>(i * run.num_spans + s));
    spans.push_back({s * run.num_tokens, (s + 1) * run.num_tokens, run.num_before, table.data()});
    for (int64_t i = 0; i < run.num_tokens; ++i) positions.push_back(run.num_before + i);
  }
  const size_t num_tokens = positions.size();
  auto random = [state = uint32_t{1}](size_t num) mutable {
    std::vector<float> out(num);
    for (float& value : out) value = static_cast<float>((state = state * 1664525 + 1013904223) >> 8) * 0x1p-23f - 1.0f;
    return out;
  };
  const auto q = random(num_tokens * static_cast<size_t>(num_heads * dim));
  const auto k = random(num_tokens * static_cast<size_t>(num_kv_heads * dim));
  const auto v = random(num_tokens * static_cast<size_t>(num_kv_heads * dim));
  std::vector<float> out(num_tokens * static_cast<size_t>(num_heads * dim));
  AttentionArgs args = {};
  args.q = q.data();
  args.k = k.data();
  args.v = v.data();
  args.out = out.data();
  args.q_stride = args.out_stride = num_heads * dim;
  args.k_stride = args.v_stride = num_kv_heads * dim;
  args.num_heads = num_heads;
  args.cache = {run.format, num_kv_heads, dim, dim, data.get(), block_bytes, head_bytes};
  args.scale = 0.125f;
  args.positions = positions.data();
  args.spans = spans.data();
  args.num_spans = run.num_spans;
  args.num_threads = num_threads;
  *write_seconds = best_seconds(3, 1, [&](int) {
    for (int64_t s = 0; s < run.num_spans; ++s) {
      kernels.write(args, s, spans[static_cast<size_t>(s)].start, spans[static_cast<size_t>(s)].stop);
    }
  });
  const int64_t num_items = kernels.num_items(args);
  const size_t scratch_bytes = (kernels.scratch_bytes(args) + 63) / 64 * 64;
  std::vector<std::unique_ptr<void, void (*)(void*)>> scratch;
  for (int i = 0; i < num_threads; ++i) scratch.emplace_back(std::aligned_alloc(64, scratch_bytes), std::free);
  const auto part = [&](int thread) {
    kernels.attend(args, num_items * thread / num_threads, num_items * (thread + 1) / num_threads,
                   scratch[static_cast<size_t>(thread)].get());
  };
  return best_seconds(run.num_tokens > 1 ? 7 : 60, num_threads, part);
}

}  // namespace

int main(int argc, char** argv) {
  const Kernels kernels = choose_kernels(argc > 1 ? argv[1] : "");
  const int num_threads = argc > 2 ? std::atoi(argv[2]) : 1;
  const Limits limits = measure_limits(num_threads);
  const double products = limits.float_products_per_second, bandwidth = limits.bytes_per_second;
  std::printf("%s, %d threads; %.1f G multiply-adds/s of floats, %.1f GB/s\n", kernels.isa, num_threads,
              products / 1e9, bandwidth / 1e9);
  constexpr Shape kSmall = {"9/3 heads, dim 64", 9, 3, 64}, kLarge = {"32/8 heads, dim 128", 32, 8, 128};
  const Run runs[] = {
      {kSmall, CacheFormat::kF16, 0, 512, 1},   {kSmall, CacheFormat::kF32, 0, 512, 1},
      {kSmall, CacheFormat::kMXINT8, 0, 512, 1}, {kSmall, CacheFormat::kF16, 1536, 512, 1},
      {kLarge, CacheFormat::kF16, 0, 512, 1},   {kSmall, CacheFormat::kF16, 0, 64, 8},
      {kSmall, CacheFormat::kF16, 511, 1, 1},   {kSmall, CacheFormat::kF16, 4095, 1, 1},
      {kSmall, CacheFormat::kF32, 4095, 1, 1},  {kSmall, CacheFormat::kMXINT8, 4095, 1, 1},
      {kSmall, CacheFormat::kF16, 511, 1, 8},   {kLarge, CacheFormat::kF16, 4095, 1, 1},
      {kSmall, CacheFormat::kF16, 511, 8, 1},   {kSmall, CacheFormat::kF16, 95, 1, 1},
      {kSmall, CacheFormat::kF16, 149, 1, 1},   {kSmall, CacheFormat::kF16, 95, 1, 8},
      {kSmall, CacheFormat::kF16, 149, 1, 8},   {kSmall, CacheFormat::kF16, 399, 1, 1},
      {kSmall, CacheFormat::kF16, 400, 32, 1},  {kSmall, CacheFormat::kF32, 400, 32, 1},
  };
  constexpr const char* kNames[] = {"f32", "f16", "mxint8"};
  for (const Run& run : runs) {
    double write_seconds = 0;
    const double seconds = measure(*kernels.attention, run, num_threads, &write_seconds);
    double pairs = 0;  // of tokens and rows
    for (int64_t i = 0; i < run.num_tokens; ++i) pairs += static_cast<double>(run.num_before + i + 1);
    const double work = 2.0 * pairs * static_cast<double>(run.num_spans * run.shape.num_heads * run.shape.dim);
    const double bytes = static_cast<double>(
        kernels.attention->head_bytes(run.format, run.shape.dim, run.shape.dim) * run.shape.num_kv_heads *
        run.num_spans * (run.num_before + run.num_tokens) / kCacheBlockLen);
    const double compute_floor = work / products, memory_floor = bytes / bandwidth;
    std::printf("%-20s %-6s %2d x %3d tokens after %4d: %8.1f us, %5.1f G/s; "
                "floors %3.0f %% compute, %3.0f %% memory; write %.1f us\n",
                run.shape.name, kNames[static_cast<int>(run.format)], static_cast<int>(run.num_spans),
                static_cast<int>(run.num_tokens), static_cast<int>(run.num_before), seconds * 1e6, work / seconds / 1e9,
                100 * compute_floor / seconds, 100 * memory_floor / seconds, write_seconds * 1e6);
  }
  return 0;
}
