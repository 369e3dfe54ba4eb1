// Sums and maxima of floats in an order that no instruction set changes.
//
// Sixteen running sums, element i in sum i % 16, joined at the end by a fixed tree; a vector holds
// as many of them as it has lanes. Include after the file named by QEFF_SIMD_HEADER.
#pragma once

#include <cstdint>
#include <cstring>

namespace qeff::QEFF_ISA {

inline constexpr int kRunning = 16;
inline constexpr int kRunningVectors = kRunning / kLanes;
static_assert(kRunning % kLanes == 0, "a vector has more lanes than there are running sums");

static inline float join_sums(float (&sums)[kRunning]) {
  for (int width = kRunning / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) sums[i] += sums[i + width];
  }
  return sums[0];
}

// The sum that term(elements, running sums) builds: it gives the running sums with these elements in them.
// The last vectors are filled up with `rest`, which must add nothing.
template <typename Term>
static inline float sum_of(const float* x, int64_t n, float rest, Term term) {
  F32 running[kRunningVectors];
  for (int v = 0; v < kRunningVectors; ++v) running[v] = zero();
  int64_t i = 0;
  for (; i + kRunning <= n; i += kRunning) {
    for (int v = 0; v < kRunningVectors; ++v) {
      running[v] = term(load(x + i + v * kLanes), running[v]);
    }
  }
  if (i < n) {
    float last[kRunning];
    for (int j = 0; j < kRunning; ++j) last[j] = i + j < n ? x[i + j] : rest;
    for (int v = 0; v < kRunningVectors; ++v) running[v] = term(load(last + v * kLanes), running[v]);
  }
  float sums[kRunning];
  for (int v = 0; v < kRunningVectors; ++v) store(sums + v * kLanes, running[v]);
  return join_sums(sums);
}

// The largest of n > 0 floats; what it gives among NaN is not fixed.
static inline float max_of(const float* x, int64_t n) {
  float best = x[0];
  int64_t i = 0;
  if (n >= kLanes) {
    F32 running = load(x);
    for (i = kLanes; i + kLanes <= n; i += kLanes) running = max(running, load(x + i));
    best = reduce_max(running);
  }
  for (; i < n; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

}  // namespace qeff::QEFF_ISA
