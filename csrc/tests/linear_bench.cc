// Speed of the linear kernels on one core beside what the core can do: packed bytes read a second
// against its measured read bandwidth, products a second against its measured peak.
//
//   linear_bench [isa] [formats, comma separated] [K,N] [threads] [numbers of tokens, comma separated]
//
// One token streams weights from memory: copies of the matrix are cycled until they exceed the
// caches. Times are the best of several, in processor time of the thread, so that other work on
// the machine counts little.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "isa/kernels.h"
#include "isa/limits.h"
#include "kernels/linear.h"

namespace {

using qeff::LinearArgs;
using qeff::LinearKernels;
using qeff::WeightFormat;

double now() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

template <class T>
T* allocate(int64_t n) {
  const size_t bytes = (static_cast<size_t>(n) * sizeof(T) + 4095) / 4096 * 4096;
  T* p = static_cast<T*>(std::aligned_alloc(4096, bytes));
  std::memset(static_cast<void*>(p), 1, bytes);
  return p;
}


struct Case {
  WeightFormat format;
  const char* name;
};
constexpr Case kCases[] = {
    {WeightFormat::kQ4_0, "q4_0"},   {WeightFormat::kQ4_1, "q4_1"},   {WeightFormat::kQ8_0, "q8_0"},
    {WeightFormat::kQ4_K, "q4_k"},   {WeightFormat::kQ6_K, "q6_k"},   {WeightFormat::kMXFP4, "mxfp4"},
    {WeightFormat::kMXFP6, "mxfp6"}, {WeightFormat::kMXFP8, "mxfp8"}, {WeightFormat::kF16, "f16"},
    {WeightFormat::kBF16, "bf16"},   {WeightFormat::kF32, "f32"},
};

// Seconds of one product with num_tokens tokens; panels [first, last) of each copy.
double time_of(const LinearKernels& kernels, LinearArgs args, int64_t copy_bytes, int64_t num_copies, int64_t first,
               int64_t last) {
  uint8_t* scratch = allocate<uint8_t>(qeff::kLinearScratchBytes);
  const uint8_t* panels = args.panels;
  double best = 1e9;
  int64_t copy = 0;
  const double begin = now();
  const int64_t repeats = args.num_tokens >= 32 ? 1 : num_copies;
  for (int round = 0; round < 60 && (round < 3 || now() - begin < 0.12); ++round) {
    const double start = now();
    for (int64_t i = 0; i < repeats; ++i) {
      args.panels = panels + copy * copy_bytes;
      copy = (copy + 1) % num_copies;
      kernels.linear(args, first, last, scratch);
    }
    const double time = (now() - start) / static_cast<double>(repeats);
    if (time < best) best = time;
  }
  std::free(scratch);
  return best;
}

void bench(const LinearKernels& kernels, const Case& c, int64_t cols, int64_t rows, int num_threads,
           const std::vector<long>& tokens, double bandwidth, double peak) {
  const int64_t bytes = qeff::panel_bytes(c.format, cols);
  if (bytes < 0) return;
  const int64_t matrix_bytes = (rows + 15) / 16 * bytes;
  const int64_t num_copies = (48 << 20) / matrix_bytes + 1;
  uint8_t* panels = allocate<uint8_t>(matrix_bytes * num_copies);
  // Moderate values everywhere: subnormal or infinite scales would time something else.
  for (int64_t i = 0; i < matrix_bytes * num_copies; ++i) panels[i] = static_cast<uint8_t>(0x40 + (i * 7 & 15));
  const int64_t most = *std::max_element(tokens.begin(), tokens.end()), blocks = (cols + 31) / 32;
  float* x = allocate<float>(most * cols);
  for (int64_t i = 0; i < most * cols; ++i) x[i] = static_cast<float>(i % 37 - 18);
  float* y = allocate<float>(most * rows);
  const qeff::RoundedActivations rounded = {allocate<int8_t>(most * blocks * 32), allocate<float>(most * blocks),
                                            allocate<int32_t>(most * blocks), blocks * 32, blocks};
  double start = now();
  kernels.round_activations(x, cols, cols, 0, most, rounded);
  start = now();
  kernels.round_activations(x, cols, cols, 0, most, rounded);
  const double rounding = now() - start;
  std::printf("%-6s K %5d N %5d ", c.name, int(cols), int(rows));
  for (const int64_t num_tokens : tokens) {
    const LinearArgs args = {c.format, panels, rows, cols, num_tokens, x, cols, rounded, nullptr, y, rows, nullptr};
    const int64_t num_panels = (rows + 15) / 16;
    std::vector<std::thread> threads;
    std::vector<double> times(static_cast<size_t>(num_threads));
    for (int i = 0; i < num_threads; ++i) {
      const int64_t first = num_panels * i / num_threads, last = num_panels * (i + 1) / num_threads;
      threads.emplace_back([&, i, first, last] {
        times[static_cast<size_t>(i)] = time_of(kernels, args, matrix_bytes, num_copies, first, last);
      });
    }
    for (std::thread& thread : threads) thread.join();
    double time = 0;
    for (const double t : times) time = t > time ? t : time;
    const double bytes_rate = static_cast<double>(matrix_bytes) / time;
    const double rate = static_cast<double>(rows * cols * num_tokens) / time;
    if (num_tokens == 1) {
      std::printf("| T 1 %5.1f GB/s %3.0f%% ", bytes_rate * 1e-9, 100 * bytes_rate / bandwidth / num_threads);
    } else {
      std::printf("| T %d %5.1f ", int(num_tokens), rate * 1e-9);
      if (num_tokens < 16) std::printf("(%.1f GB/s) ", bytes_rate * 1e-9);
      if (peak > 0) std::printf("%3.0f%% ", 100 * rate / peak / num_threads);
    }
  }
  std::printf("| round %.2f G/s\n", static_cast<double>(most * cols) / rounding * 1e-9);
  std::fflush(stdout);
  std::free(panels);
  std::free(x);
  std::free(y);
  std::free(rounded.q);
  std::free(rounded.scale);
  std::free(rounded.sum);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string isa = argc > 1 ? argv[1] : "";
  const std::string wanted = std::string(",") + (argc > 2 && std::strcmp(argv[2], "all") != 0 ? argv[2] : "") + ",";
  std::vector<std::pair<long, long>> shapes = {{576, 1536}, {1536, 576}, {2048, 8192}};
  if (argc > 3 && std::strcmp(argv[3], "all") != 0) {
    char* end = nullptr;
    const long cols = std::strtol(argv[3], &end, 10);
    shapes = {{cols, *end == ',' ? std::strtol(end + 1, nullptr, 10) : 0}};
    if (shapes[0].first <= 0 || shapes[0].second <= 0) return std::printf("the shape is K,N\n"), 2;
  }
  const int num_threads = argc > 4 ? std::atoi(argv[4]) : 1;
  std::vector<long> tokens = {1, 2, 4, 8, 32, 128};
  if (argc > 5) {
    tokens.clear();
    for (const char* p = argv[5]; *p != 0; p += *p == ',') {
      char* end = nullptr;
      tokens.push_back(std::strtol(p, &end, 10));
      if (tokens.back() < 1 || end == p) return std::printf("numbers of tokens are at least 1\n"), 2;
      p = end;
    }
  }
  const LinearKernels* kernels = qeff::choose_kernels(isa).linear;
  if (num_threads < 1) return std::printf("the number of threads is at least 1\n"), 2;
  const qeff::Limits limits = qeff::measure_limits(num_threads);
  const double bandwidth = limits.bytes_per_second, peak = limits.int8_products_per_second;
  std::printf("one core: reads %.1f GB/s, dot products %.1f GMAC/s; below: GB/s of packed weights, then GMAC/s\n",
              bandwidth * 1e-9, peak * 1e-9);
  for (const auto& [cols, rows] : shapes) {
    for (const Case& c : kCases) {
      if (wanted != ",," && wanted.find(std::string(",") + c.name + ",") == std::string::npos) continue;
      bench(*kernels, c, cols, rows, num_threads, tokens, bandwidth, peak);
    }
  }
  return 0;
}
