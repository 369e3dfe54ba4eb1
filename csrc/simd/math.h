// Elementary functions over the SIMD layer, element by element: a lane's result depends on that
// lane's input alone, and is the same on every instruction set. NaN gives NaN.
//
// Include after the file named by QEFF_SIMD_HEADER.
#pragma once

namespace qeff::QEFF_ISA {

// e^x to about 1 unit in the last place; below -86.9 the result is 0, above 88.7 infinity.
static inline F32 exp(F32 x) {
  // x = n ln 2 + r with |r| <= ln 2 / 2; ln 2 in two parts so that n times the first is exact.
  // Only n needs the clamp: above it r is large and the result infinity, below it is replaced.
  const F32 lowest = set1(-86.9f);
  const F32 clamped = min(max(x, lowest), set1(88.72283f));
  // Added to 1.5 * 2^23 a float is rounded to a whole number that stands in its lowest bits: n + 126, the
  // exponent of 2^(n - 1). 2^128 has no float of its own, so the last factor of 2 comes at the end.
  const F32 magic = set1(12582912.0f + 126.0f);
  const F32 shifted = fma(clamped, set1(1.44269504f), magic);
  const F32 power = as_f32(shift_left<23>(as_i32(shifted)));
  const F32 n = shifted - magic;
  F32 r = fma(n, set1(-0.693359375f), x);
  r = fma(n, set1(2.12194440e-4f), r);
  // The polynomial by pairs of terms: a shorter chain than one term after the other.
  const F32 square = r * r;
  const F32 low = fma(set1(1.6666665459e-1f), r, set1(5.0000001201e-1f));
  const F32 middle = fma(set1(8.3334519073e-3f), r, set1(4.1665795894e-2f));
  const F32 high = fma(set1(1.9875691500e-4f), r, set1(1.3981999507e-3f));
  const F32 p = fma(fma(high, square, middle), square, low);
  const F32 half = (fma(p, square, r) + set1(1.0f)) * power;
  return select_positive(lowest - x, zero(), half + half);
}

// 1 / (1 + e^-x); 0 where e^-x is infinite.
static inline F32 sigmoid(F32 x) { return set1(1.0f) / (set1(1.0f) + exp(zero() - x)); }

// To 2e-7 of the result, for small x too.
static inline F32 tanh(F32 x) {
  const F32 a = abs(x);
  // Near zero x + x z P(z) with z = x^2; elsewhere 1 - 2 / (e^2a + 1).
  const F32 z = x * x;
  F32 p = set1(-5.717045162e-03f);
  p = fma(p, z, set1(2.065058798e-02f));
  p = fma(p, z, set1(-5.374349654e-02f));
  p = fma(p, z, set1(1.333149076e-01f));
  p = fma(p, z, set1(-3.333328366e-01f));
  const F32 near = fma(p * z, x, x);
  const F32 far = set1(1.0f) - set1(2.0f) / (exp(a + a) + set1(1.0f));
  const F32 signed_far = select_positive(x, far, zero() - far);
  return select_positive(a - set1(0.625f), signed_far, near);
}

// The error function, to 2e-7 of the result.
static inline F32 erf(F32 x) {
  const F32 a = abs(x);
  // Near zero x + x P(x^2); elsewhere 1 - e^Q(a), where Q is the logarithm of 1 - erf.
  const F32 z = x * x;
  F32 p = set1(8.397804049e-05f);
  p = fma(p, z, set1(-8.149808273e-04f));
  p = fma(p, z, set1(5.201716442e-03f));
  p = fma(p, z, set1(-2.685970254e-02f));
  p = fma(p, z, set1(1.128370166e-01f));
  p = fma(p, z, set1(-3.761263490e-01f));
  p = fma(p, z, set1(1.283791661e-01f));
  const F32 near = fma(p, x, x);
  const F32 b = min(a, set1(4.0f));
  const F32 b2 = b * b;
  const F32 q0 = fma(set1(-1.129523158e+00f), b, set1(1.763608889e-04f));
  const F32 q1 = fma(set1(-1.082990915e-01f), b, set1(-6.333299875e-01f));
  const F32 q2 = fma(set1(-4.175898153e-03f), b, set1(2.513194084e-02f));
  const F32 q3 = fma(set1(-2.118418161e-05f), b, set1(4.354771518e-04f));
  const F32 q = fma(fma(q3, b2, q2), b2 * b2, fma(q1, b2, q0));
  const F32 far = set1(1.0f) - exp(q);
  const F32 signed_far = select_positive(x, far, zero() - far);
  return select_positive(a - set1(0.921875f), signed_far, near);
}

static inline F32 silu(F32 x) { return x / (set1(1.0f) + exp(zero() - x)); }

static inline F32 gelu(F32 x) {
  return set1(0.5f) * x * (set1(1.0f) + erf(x * set1(0.70710678f)));
}

// x (1 + tanh(i)) / 2 with i = sqrt(2 / pi) (x + 0.044715 x^3), which is x / (1 + e^-2i).
static inline F32 gelu_tanh(F32 x) {
  const F32 inner = set1(-1.59576912f) * (x + set1(0.044715f) * x * x * x);
  return x / (set1(1.0f) + exp(inner));
}

static inline F32 relu(F32 x) { return select_positive(zero() - x, zero(), x); }

static inline F32 relu2(F32 x) {
  const F32 r = relu(x);
  return r * r;
}

}  // namespace qeff::QEFF_ISA
