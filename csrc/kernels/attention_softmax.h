// The exponential of a softmax: several vectors at a time, none of them above zero.
//
// Included after the SIMD layer. A lane's result depends on that lane alone and is the same on every instruction set.
#pragma once

namespace qeff::QEFF_ISA {

// Vectors that are best done together: as many as registers hold.
constexpr int kExpVecs = kLanes == 4 ? 8 : 4;

// x = e^x for x <= 0: to 3 units in the last place above -20 and 8 below, where a weight hardly counts; from -88 on
// the result is 0; 0 gives exactly 1; NaN stays NaN.
// The vectors go through each step side by side: one alone would wait for itself at every step.
template <int N>
static inline __attribute__((always_inline)) void exp_nonpositive(F32* x) {
  // x = n ln 2 + r with |r| <= ln 2 / 2. Added to this number, another is rounded to a whole one, and the low bits
  // are n + 127: the exponent field of 2^n, and 0 for n = -127.
  constexpr float kMagic = 12582912.0f + 127.0f;
  static constexpr Spread kRounding(kMagic), kOne(1.0f);
  static constexpr Spread kTerms[] = {Spread(4.18909863e-2f), Spread(1.66671187e-1f), Spread(4.99992251e-1f), kOne,
                                      kOne};
  F32 scale[N], p[N];
  // The limit makes n = -127. It comes first because max keeps a NaN of its second argument.
  for (int i = 0; i < N; ++i) x[i] = max(set1(-88.0f), x[i]);
  for (int i = 0; i < N; ++i) scale[i] = fma_onto(x[i], set1(1.44269504f), kRounding);
  for (int i = 0; i < N; ++i) x[i] = fma_in_place(scale[i] - set1(kMagic), set1(-0.693147181f), x[i]);
  // e^r = 1 + r (1 + r (c2 + r (c3 + r (c4 + r c5))))
  for (int i = 0; i < N; ++i) p[i] = set1(8.31243023e-3f);
  for (const Spread& term : kTerms) {
    for (int i = 0; i < N; ++i) p[i] = fma_onto(x[i], p[i], term);
  }
  for (int i = 0; i < N; ++i) x[i] = p[i] * as_f32(shift_left<23>(as_i32(scale[i])));
}

}  // namespace qeff::QEFF_ISA
