// Functions of one or two floats over arrays.
//
// The last elements of an array go through the same vector code in a padded copy, so that a result
// does not depend on the element's place. Include after the file named by QEFF_SIMD_HEADER.
#pragma once

#include <cstdint>
#include <cstring>

namespace qeff::QEFF_ISA {

// y[i] = f(x[i]).
template <typename F>
static inline void map1(const float* x, int64_t n, float* y, F f) {
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {  // two at once: their chains of operations run side by side
    const F32 first = f(load(x + i));
    const F32 second = f(load(x + i + kLanes));
    store(y + i, first);
    store(y + i + kLanes, second);
  }
  for (; i + kLanes <= n; i += kLanes) store(y + i, f(load(x + i)));
  if (i < n) {
    float last[kLanes] = {};
    std::memcpy(last, x + i, static_cast<size_t>(n - i) * sizeof(float));
    store(last, f(load(last)));
    std::memcpy(y + i, last, static_cast<size_t>(n - i) * sizeof(float));
  }
}

// y[i] = f(a[i], b[i]).
template <typename F>
static inline void map2(const float* a, const float* b, int64_t n, float* y, F f) {
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {  // two at once: their chains of operations run side by side
    const F32 first = f(load(a + i), load(b + i));
    const F32 second = f(load(a + i + kLanes), load(b + i + kLanes));
    store(y + i, first);
    store(y + i + kLanes, second);
  }
  for (; i + kLanes <= n; i += kLanes) store(y + i, f(load(a + i), load(b + i)));
  if (i < n) {
    const size_t bytes = static_cast<size_t>(n - i) * sizeof(float);
    float last_a[kLanes] = {}, last_b[kLanes] = {};
    std::memcpy(last_a, a + i, bytes);
    std::memcpy(last_b, b + i, bytes);
    store(last_a, f(load(last_a), load(last_b)));
    std::memcpy(y + i, last_a, bytes);
  }
}

// y[i] = f(a[i * a_step], b[i * b_step]) for steps of 0 or 1.
template <typename F>
static inline void map2_steps(const float* a, int64_t a_step, const float* b, int64_t b_step,
                              int64_t n, float* y, F f) {
  if (n == 0) return;
  if (a_step != 0 && b_step != 0) {
    map2(a, b, n, y, f);
  } else if (a_step != 0) {
    const F32 other = set1(*b);
    map1(a, n, y, [&](F32 x) { return f(x, other); });
  } else {
    const F32 other = set1(*a);
    if (b_step != 0) {
      map1(b, n, y, [&](F32 x) { return f(other, x); });
    } else {
      float one[kLanes];
      store(one, f(other, set1(*b)));
      for (int64_t i = 0; i < n; ++i) y[i] = one[0];
    }
  }
}

}  // namespace qeff::QEFF_ISA
