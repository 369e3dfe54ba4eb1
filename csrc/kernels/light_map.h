// Functions of one or two floats over arrays.
//
// The last elements of an array go through the same vector code in a padded copy, so that a result
// does not depend on the element's place. Include after the file named by QEFF_SIMD_HEADER.
#pragma once

#include <cstdint>
#include <cstring>

namespace qeff::QEFF_ISA {

// Vectors that a function works on at once: the more, the less it waits for its own results.
inline constexpr int kTogether = 4;

// y[i] = f(x[i]). f takes an array of vectors, of any number, and works on each in place.
template <typename F>
static inline void map1(const float* x, int64_t n, float* y, F f) {
  int64_t i = 0;
  for (; i + kTogether * kLanes <= n; i += kTogether * kLanes) {
    F32 v[kTogether];
    for (int j = 0; j < kTogether; ++j) v[j] = load(x + i + j * kLanes);
    f(v);
    for (int j = 0; j < kTogether; ++j) store(y + i + j * kLanes, v[j]);
  }
  for (; i < n; i += kLanes) {
    const size_t bytes = static_cast<size_t>(n - i < kLanes ? n - i : kLanes) * sizeof(float);
    float last[kLanes] = {};
    std::memcpy(last, x + i, bytes);
    F32 v[1] = {load(last)};
    f(v);
    store(last, v[0]);
    std::memcpy(y + i, last, bytes);
  }
}

// y[i] = f(a[i], b[i]). f takes two arrays of vectors, of any number, and leaves its results in the first.
template <typename F>
static inline void map2(const float* a, const float* b, int64_t n, float* y, F f) {
  int64_t i = 0;
  for (; i + kTogether * kLanes <= n; i += kTogether * kLanes) {
    F32 u[kTogether], v[kTogether];
    for (int j = 0; j < kTogether; ++j) u[j] = load(a + i + j * kLanes);
    for (int j = 0; j < kTogether; ++j) v[j] = load(b + i + j * kLanes);
    f(u, v);
    for (int j = 0; j < kTogether; ++j) store(y + i + j * kLanes, u[j]);
  }
  for (; i < n; i += kLanes) {
    const size_t bytes = static_cast<size_t>(n - i < kLanes ? n - i : kLanes) * sizeof(float);
    float last_a[kLanes] = {}, last_b[kLanes] = {};
    std::memcpy(last_a, a + i, bytes);
    std::memcpy(last_b, b + i, bytes);
    F32 u[1] = {load(last_a)};
    F32 v[1] = {load(last_b)};
    f(u, v);
    store(last_a, u[0]);
    std::memcpy(y + i, last_a, bytes);
  }
}

// A function of single vectors in the form that map1 and map2 take.
template <typename F>
static inline auto each_vector(F f) {
  return [f]<int N>(F32 (&u)[N], auto&... v) {
    for (int i = 0; i < N; ++i) u[i] = f(u[i], v[i]...);
  };
}

// y[i] = f(a[i * a_step], b[i * b_step]) for steps of 0 or 1 and a function of single vectors.
template <typename F>
static inline void map2_steps(const float* a, int64_t a_step, const float* b, int64_t b_step,
                              int64_t n, float* y, F f) {
  if (n == 0) return;
  if (a_step != 0 && b_step != 0) {
    map2(a, b, n, y, each_vector(f));
  } else if (a_step != 0) {
    const F32 other = set1(*b);
    map1(a, n, y, each_vector([&](F32 x) { return f(x, other); }));
  } else {
    const F32 other = set1(*a);
    if (b_step != 0) {
      map1(b, n, y, each_vector([&](F32 x) { return f(other, x); }));
    } else {
      float one[kLanes];
      store(one, f(other, set1(*b)));
      for (int64_t i = 0; i < n; ++i) y[i] = one[0];
    }
  }
}

}  // namespace qeff::QEFF_ISA
