// The exponential of a softmax: several vectors at a time, none of them above zero.
//
// Included after the SIMD layer. A lane's result depends on that lane alone and is the same on every instruction set.
#pragma once

namespace qeff::QEFF_ISA {

// x = e^x for x <= 0: to 3 units in the last place above -20 and 8 below, where a weight hardly counts; from -88 on
// the result is 0; 0 gives exactly 1; NaN stays NaN.
// The vectors go through each step side by side: one alone would wait for itself at every step.
template <int N>
static inline __attribute__((always_inline)) void exp_nonpositive(F32* x) {
  // x = n ln 2 + r with |r| <= ln 2 / 2. Added to this number, another is rounded to a whole one, and the low bits
  // are n + 127: the exponent field of 2^n, and 0 for n = -127.
  const F32 magic = set1(12582912.0f + 127.0f);
  F32 scale[N], r[N], square[N], low[N], high[N];
  // The limit makes n = -127. It comes first because max keeps a NaN of its second argument.
  for (int i = 0; i < N; ++i) x[i] = max(set1(-88.0f), x[i]);
  for (int i = 0; i < N; ++i) scale[i] = x[i] * set1(1.44269504f) + magic;
  for (int i = 0; i < N; ++i) r[i] = fma(scale[i] - magic, set1(-0.693147181f), x[i]);
  // e^r = (1 + r) + r^2 ((c2 + c3 r) + r^2 (c4 + c5 r))
  for (int i = 0; i < N; ++i) square[i] = r[i] * r[i];
  for (int i = 0; i < N; ++i) high[i] = fma(r[i], set1(8.31243023e-3f), set1(4.18909863e-2f));
  for (int i = 0; i < N; ++i) low[i] = fma(r[i], set1(1.66671187e-1f), set1(4.99992251e-1f));
  for (int i = 0; i < N; ++i) low[i] = fma(high[i], square[i], low[i]);
  for (int i = 0; i < N; ++i) x[i] = fma(low[i], square[i], r[i] + set1(1.0f));
  for (int i = 0; i < N; ++i) x[i] = x[i] * as_f32(shift_left<23>(as_i32(scale[i])));
}

}  // namespace qeff::QEFF_ISA
