// Elementary functions over the SIMD layer, element by element: a lane's result depends on that
// lane's input alone, and is the same on every instruction set. NaN gives NaN.
//
// They work on N vectors in place, all of which go through each step before the next: a processor would wait for a
// single one at every step.
//
// Include after the file named by QEFF_SIMD_HEADER.
#pragma once

namespace qeff::QEFF_ISA {

// e^x or, negated, e^-x as mantissa * power: to about 1 unit in the last place; below -86.9 power is 0, above 88.7
// the product infinite.
template <bool IsNegated, int N>
static inline void exp_parts(const F32 (&x)[N], F32 (&mantissa)[N], F32 (&power)[N]) {
  // Where x is negated, so are all factors of odd powers of it, and r below.
  constexpr float kSign = IsNegated ? -1.0f : 1.0f;
  // Added to 1.5 * 2^23 a float is rounded to a whole number that stands in its lowest bits: n + 126, the
  // exponent of 2^(n - 1). 2^128 has no float of its own, so all coefficients are twice those of e^r.
  constexpr float kMagic = 12582912.0f + 126.0f;
  static constexpr Spread kAdded[] = {
      Spread(2.0f), Spread(kSign * 2.0f),          Spread(0.99999988f), Spread(kSign * 0.33333042f),
      Spread(0.083336778f), Spread(kSign * 0.016737491f), Spread(kMagic)};
  const F32 magic = set1(kMagic), highest = set1(88.72283f), lowest = set1(-87.2f);
  F32 r[N], n[N];
  // x = n ln 2 + r with |r| <= ln 2 / 2; ln 2 in two parts so that n times the first is exact. The lower limit gives
  // n = -126 and power 0. The upper one is for n alone: above it r is large and the result infinite. Both come
  // first because min and max keep a NaN of their second argument.
  for (int i = 0; i < N; ++i) r[i] = IsNegated ? min(zero() - lowest, x[i]) : max(lowest, x[i]);
  for (int i = 0; i < N; ++i) n[i] = IsNegated ? max(zero() - highest, r[i]) : min(highest, r[i]);
  for (int i = 0; i < N; ++i) power[i] = fma_onto(n[i], set1(kSign * 1.44269504f), kAdded[6]);
  for (int i = 0; i < N; ++i) n[i] = power[i] - magic;
  for (int i = 0; i < N; ++i) r[i] = fma_in_place(n[i], set1(kSign * -0.693359375f), r[i]);
  for (int i = 0; i < N; ++i) r[i] = fma_in_place(n[i], set1(kSign * 2.12194440e-4f), r[i]);
  for (int i = 0; i < N; ++i) mantissa[i] = fma_onto(r[i], set1(0.0027629081f), kAdded[5]);
  for (int term = 4; term >= 0; --term) {
    for (int i = 0; i < N; ++i) mantissa[i] = fma_onto(mantissa[i], r[i], kAdded[term]);
  }
  for (int i = 0; i < N; ++i) power[i] = as_f32(shift_left<23>(as_i32(power[i])));
}

// e^x; below -86.9 the result is 0, above 88.7 infinity.
template <int N>
static inline void exp(F32 (&x)[N]) {
  F32 mantissa[N], power[N];
  exp_parts<false>(x, mantissa, power);
  for (int i = 0; i < N; ++i) x[i] = mantissa[i] * power[i];
}

// 1 + e^x or, negated, 1 + e^-x, for divisions.
template <bool IsNegated, int N>
static inline void one_plus_exp(F32 (&x)[N]) {
  static constexpr Spread kOne(1.0f);
  F32 mantissa[N], power[N];
  exp_parts<IsNegated>(x, mantissa, power);
  for (int i = 0; i < N; ++i) x[i] = fma_onto(mantissa[i], power[i], kOne);
}

// 1 / (1 + e^-x); 0 where e^-x is infinite.
template <int N>
static inline void sigmoid(F32 (&x)[N]) {
  one_plus_exp<true>(x);
  for (int i = 0; i < N; ++i) x[i] = set1(1.0f) / x[i];
}

template <int N>
static inline void silu(F32 (&x)[N]) {
  F32 below[N];
  for (int i = 0; i < N; ++i) below[i] = x[i];
  one_plus_exp<true>(below);
  for (int i = 0; i < N; ++i) x[i] = x[i] / below[i];
}

// To 2e-7 of the result, for small x too.
template <int N>
static inline void tanh(F32 (&x)[N]) {
  F32 below[N];
  for (int i = 0; i < N; ++i) below[i] = abs(x[i]) + abs(x[i]);
  one_plus_exp<false>(below);
  for (int i = 0; i < N; ++i) {
    // Near zero x + x z P(z) with z = x^2; elsewhere 1 - 2 / (e^2a + 1) with a = |x|.
    const F32 z = x[i] * x[i];
    F32 p = set1(-5.717045162e-03f);
    p = fma(p, z, set1(2.065058798e-02f));
    p = fma(p, z, set1(-5.374349654e-02f));
    p = fma(p, z, set1(1.333149076e-01f));
    p = fma(p, z, set1(-3.333328366e-01f));
    const F32 near = fma(p * z, x[i], x[i]);
    const F32 far = set1(1.0f) - set1(2.0f) / below[i];
    const F32 signed_far = select_positive(x[i], far, zero() - far);
    x[i] = select_positive(abs(x[i]) - set1(0.625f), signed_far, near);
  }
}
static inline F32 tanh(F32 x) {
  F32 one[1] = {x};
  tanh(one);
  return one[0];
}

// The error function, to 2e-7 of the result.
template <int N>
static inline void erf(F32 (&x)[N]) {
  // Near zero x + x P(x^2); elsewhere 1 - e^Q(a) with a = |x|, where Q is the logarithm of 1 - erf.
  F32 q[N];
  for (int i = 0; i < N; ++i) {
    const F32 b = min(abs(x[i]), set1(4.0f));
    const F32 b2 = b * b;
    const F32 q0 = fma(set1(-1.129523158e+00f), b, set1(1.763608889e-04f));
    const F32 q1 = fma(set1(-1.082990915e-01f), b, set1(-6.333299875e-01f));
    const F32 q2 = fma(set1(-4.175898153e-03f), b, set1(2.513194084e-02f));
    const F32 q3 = fma(set1(-2.118418161e-05f), b, set1(4.354771518e-04f));
    q[i] = fma(fma(q3, b2, q2), b2 * b2, fma(q1, b2, q0));
  }
  exp(q);
  for (int i = 0; i < N; ++i) {
    const F32 z = x[i] * x[i];
    F32 p = set1(8.397804049e-05f);
    p = fma(p, z, set1(-8.149808273e-04f));
    p = fma(p, z, set1(5.201716442e-03f));
    p = fma(p, z, set1(-2.685970254e-02f));
    p = fma(p, z, set1(1.128370166e-01f));
    p = fma(p, z, set1(-3.761263490e-01f));
    p = fma(p, z, set1(1.283791661e-01f));
    const F32 near = fma(p, x[i], x[i]);
    const F32 far = set1(1.0f) - q[i];
    const F32 signed_far = select_positive(x[i], far, zero() - far);
    x[i] = select_positive(abs(x[i]) - set1(0.921875f), signed_far, near);
  }
}

template <int N>
static inline void gelu(F32 (&x)[N]) {
  F32 turned[N];
  for (int i = 0; i < N; ++i) turned[i] = x[i] * set1(0.70710678f);
  erf(turned);
  for (int i = 0; i < N; ++i) x[i] = set1(0.5f) * x[i] * (set1(1.0f) + turned[i]);
}

// x (1 + tanh(i)) / 2 with i = sqrt(2 / pi) (x + 0.044715 x^3), which is x / (1 + e^-2i).
template <int N>
static inline void gelu_tanh(F32 (&x)[N]) {
  F32 below[N];
  for (int i = 0; i < N; ++i) below[i] = fma(x[i] * x[i], set1(0.0713548163f), set1(1.59576912f)) * x[i];
  one_plus_exp<true>(below);
  for (int i = 0; i < N; ++i) x[i] = x[i] / below[i];
}

}  // namespace qeff::QEFF_ISA
