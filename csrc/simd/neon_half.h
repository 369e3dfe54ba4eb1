// Products of halves with NEON. Included by simd/neon.h alone; simd/scalar.h says what each function means.
#pragma once

namespace qeff::QEFF_ISA {

inline constexpr bool kHasHalfUnit = true;

struct HalfUnit {
  using Vec = float16x8_t;

  static inline __attribute__((always_inline)) Vec zero() {
    Vec r;
    asm volatile("movi %0.8h, #0" : "=w"(r));
    return r;
  }
  static inline __attribute__((always_inline)) Vec load(const uint16_t* p) { return pinned<Vec>(p); }
  // The instruction takes its second factor from the lower 16 registers alone.
  static inline __attribute__((always_inline)) Vec load_factors(const uint16_t* p) {
    Vec v;
    asm volatile("ldr %q0, %1" : "=x"(v) : "m"(*reinterpret_cast<const Vec*>(p)));
    return v;
  }
  static inline __attribute__((always_inline)) Vec spread(const uint16_t* p) {
    return vreinterpretq_f16_u16(vld1q_dup_u16(p));
  }
  static inline __attribute__((always_inline)) Vec add(Vec a, Vec b) { return vaddq_f16(a, b); }
  static inline __attribute__((always_inline)) Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f16(c, a, b); }
  template <int I>
  static inline __attribute__((always_inline)) Vec fma_lane(Vec a, Vec b, Vec c) {
    asm volatile("fmla %0.8h, %1.8h, %2.h[%3]" : "+w"(c) : "w"(a), "x"(b), "i"(I));
    return c;
  }
  static inline __attribute__((always_inline)) void widen(Vec a, F32 (&out)[2]) {
    out[0].v = vcvt_f32_f16(vget_low_f16(a));
    out[1].v = vcvt_high_f32_f16(a);
  }
  static inline __attribute__((always_inline)) void store(uint16_t* p, F32 low, F32 high) {
    vst1q_u16(p, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(low.v), high.v)));
  }
};

}  // namespace qeff::QEFF_ISA
