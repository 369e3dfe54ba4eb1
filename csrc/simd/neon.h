// The SIMD layer on Armv8.2 with dot products and half precision. simd/scalar.h says what each
// function means.
#pragma once

#include <arm_neon.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace qeff::QEFF_ISA {

inline constexpr int kLanes = 4;

struct F32 {
  float32x4_t v;
};
struct I32 {
  int32x4_t v;
};

static inline float half_to_float(uint16_t h) {
  __fp16 half;
  std::memcpy(&half, &h, 2);
  return static_cast<float>(half);
}
static inline uint16_t float_to_half(float f) {
  const __fp16 half = static_cast<__fp16>(f);
  uint16_t h;
  std::memcpy(&h, &half, 2);
  return h;
}
static inline float bfloat_to_float(uint16_t b) {
  const uint32_t bits = static_cast<uint32_t>(b) << 16;
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
}

static inline F32 zero() { return {vdupq_n_f32(0)}; }
static inline F32 set1(float x) { return {vdupq_n_f32(x)}; }
static inline F32 load(const float* p) { return {vld1q_f32(p)}; }
static inline void store(float* p, F32 a) { vst1q_f32(p, a.v); }
static inline F32 load_f16(const uint16_t* p) { return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))}; }
static inline F32 load_bf16(const uint16_t* p) { return {vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16))}; }
static inline F32 operator+(F32 a, F32 b) { return {vaddq_f32(a.v, b.v)}; }
static inline F32 operator-(F32 a, F32 b) { return {vsubq_f32(a.v, b.v)}; }
static inline F32 operator*(F32 a, F32 b) { return {vmulq_f32(a.v, b.v)}; }
static inline F32 operator/(F32 a, F32 b) { return {vdivq_f32(a.v, b.v)}; }
static inline F32 fma(F32 a, F32 b, F32 c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
struct Spread {
  constexpr explicit Spread(float x) : v{x, x, x, x} {}
  alignas(16) float v[4];
};
static inline F32 fma_onto(F32 a, F32 b, const Spread& c) {
  float32x4_t sum;
  asm volatile("ldr %q0, %1" : "=w"(sum) : "m"(c));
  asm("fmla %0.4s, %1.4s, %2.4s" : "+w"(sum) : "w"(a.v), "w"(b.v));
  return {sum};
}
static inline F32 min(F32 a, F32 b) { return {vminq_f32(a.v, b.v)}; }
static inline F32 max(F32 a, F32 b) { return {vmaxq_f32(a.v, b.v)}; }
static inline F32 abs(F32 a) { return {vabsq_f32(a.v)}; }
static inline F32 sqrt(F32 a) { return {vsqrtq_f32(a.v)}; }
static inline F32 round(F32 a) { return {vrndnq_f32(a.v)}; }
static inline F32 select_positive(F32 m, F32 a, F32 b) { return {vbslq_f32(vcgtzq_f32(m.v), a.v, b.v)}; }
static inline float reduce_add(F32 a) { return vaddvq_f32(a.v); }
static inline float reduce_max(F32 a) { return vmaxvq_f32(a.v); }

static inline I32 set1_i32(int32_t x) { return {vdupq_n_s32(x)}; }
static inline I32 load_i32(const int32_t* p) { return {vld1q_s32(p)}; }
static inline void store_i32(int32_t* p, I32 a) { vst1q_s32(p, a.v); }
static inline I32 operator+(I32 a, I32 b) { return {vaddq_s32(a.v, b.v)}; }
static inline I32 operator*(I32 a, I32 b) { return {vmulq_s32(a.v, b.v)}; }
static inline I32 operator&(I32 a, I32 b) { return {vandq_s32(a.v, b.v)}; }
template <int N>
static inline I32 shift_left(I32 a) { return {vshlq_n_s32(a.v, N)}; }
static inline F32 to_f32(I32 a) { return {vcvtq_f32_s32(a.v)}; }
static inline F32 as_f32(I32 a) { return {vreinterpretq_f32_s32(a.v)}; }
static inline I32 as_i32(F32 a) { return {vreinterpretq_s32_f32(a.v)}; }

struct Four {
  float32x4_t v;
};
// Loads and products stay where the kernel puts them: compilers move additions to one sum together, where each waits
// for the last.
template <class Vector>
static inline Vector pinned(const void* p) {
  Vector v;
  asm volatile("ldr %q0, %1" : "=w"(v) : "m"(*static_cast<const Vector*>(p)));
  return v;
}
static inline Four load_four(const float* p) { return {pinned<float32x4_t>(p)}; }
template <int I>
static inline F32 fma_spread(F32 a, Four b, F32 c) {
  asm volatile("fmla %0.4s, %1.4s, %2.s[%3]" : "+w"(c.v) : "w"(a.v), "w"(b.v), "i"(I));
  return c;
}
struct Halves {
  uint16x8_t v[2];
};
static inline Halves load_halves(const uint16_t* p) { return {{pinned<uint16x8_t>(p), pinned<uint16x8_t>(p + 8)}}; }
template <int I>
static inline F32 widen(const Halves& a) {
  F32 r;
  if constexpr (I % 2 == 0) asm volatile("fcvtl %0.4s, %1.4h" : "=w"(r.v) : "w"(a.v[I / 2]));
  if constexpr (I % 2 == 1) asm volatile("fcvtl2 %0.4s, %1.8h" : "=w"(r.v) : "w"(a.v[I / 2]));
  return r;
}
static inline F32 zero_pinned() {
  F32 r;
  asm volatile("movi %0.4s, #0" : "=w"(r.v));
  return r;
}
static inline void load_i8x16(const int8_t* p, F32* out) {
  const int8x16_t bytes = vld1q_s8(p);
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
  out[0].v = vcvtq_f32_s32(vmovl_s16(vget_low_s16(low)));
  out[1].v = vcvtq_f32_s32(vmovl_high_s16(low));
  out[2].v = vcvtq_f32_s32(vmovl_s16(vget_low_s16(high)));
  out[3].v = vcvtq_f32_s32(vmovl_high_s16(high));
}

inline constexpr int kPanelVecs = 16 / kLanes;
inline constexpr int kVecBytes = 4 * kLanes;
inline constexpr int kTileVecs = 1;
inline constexpr int kTileTokens = 8;
inline constexpr int kFloatTileTokens = 4;
inline constexpr bool kHasStrips = true;
inline constexpr bool kHasStreamUnit = true;
inline constexpr int kStreamStep = 2;
inline constexpr int kStreamAhead = 12800;
inline constexpr bool kHasTileUnit = false;
struct TileUnit {};

struct Bytes {
  uint8x16_t v;
};
struct Quads {
  int8x16_t v;
};
struct Scalars {
  float32x4_t v;
};
struct Table16 {
  uint8x16_t v;
};

static inline Bytes load_bytes(const uint8_t* p) { return {vld1q_u8(p)}; }
static inline void store_bytes(uint8_t* p, Bytes a) { vst1q_u8(p, a.v); }
static inline Bytes low_nibbles(Bytes a) { return {vandq_u8(a.v, vdupq_n_u8(15))}; }
static inline Bytes low_five(Bytes a) { return {vandq_u8(a.v, vdupq_n_u8(31))}; }
static inline Bytes high_nibbles(Bytes a) { return {vshrq_n_u8(a.v, 4)}; }
static inline Bytes minus(Bytes a, int n) { return {vsubq_u8(a.v, vdupq_n_u8(static_cast<uint8_t>(n)))}; }
template <int Field, int At>
static inline Bytes insert_two_bits(Bytes a, Bytes b) {
  if constexpr (At > 2 * Field) b.v = vshlq_n_u8(b.v, At - 2 * Field);
  if constexpr (At < 2 * Field) b.v = vshrq_n_u8(b.v, 2 * Field - At);
  // As an instruction, since compilers often copy b to overwrite it.
  asm("bit %0.16b, %1.16b, %2.16b" : "+w"(a.v) : "w"(b.v), "w"(vdupq_n_u8(3 << At)));
  return a;
}
// As instructions, since compilers copy what is overwritten.
template <int G>
static inline Bytes two_more_bits(Bytes high) {
  if constexpr (G / 2 % 2 == 1) high.v = vshrq_n_u8(high.v, 2);
  return {G < 6 ? vandq_u8(high.v, vdupq_n_u8(G < 4 ? 3 : 0x30)) : high.v};
}
template <int G>
static inline Bytes six_bits(Bytes both, Bytes more) {
  if constexpr (G < 4) {
    asm("sli %0.16b, %1.16b, #4" : "+w"(both.v) : "w"(more.v));
    return both;
  }
  asm("sri %0.16b, %1.16b, #4" : "+w"(more.v) : "w"(both.v));
  return more;
}
static inline Table16 load_table16(const uint8_t* p) { return {vld1q_u8(p)}; }
static inline Bytes lookup(Table16 table, Bytes index) { return {vqtbl1q_u8(table.v, index.v)}; }
struct Table32 {
  uint8x16_t low, high;
};
static inline Table32 load_table32(const uint8_t* p) { return {vld1q_u8(p), vld1q_u8(p + 16)}; }
static inline Bytes lookup(Table32 table, Bytes index) {
  // Two registers of its own: compilers load pairs anew, or copy them.
  register uint8x16_t low asm("v30") = table.low;
  register uint8x16_t high asm("v31") = table.high;
  asm("tbl %0.16b, {%1.16b, %2.16b}, %0.16b" : "+w"(index.v) : "w"(low), "w"(high));
  return index;
}
template <int N>
static inline Bytes add_high(Bytes a, Bytes b) { return {vsraq_n_u8(a.v, b.v, N)}; }
inline constexpr int kWideBias = 0;
static inline Bytes wide_weights(Bytes a) { return a; }

static inline Quads load_quads(const int8_t* p) { return {vld1q_s8(p)}; }
template <int Group>
static inline I32 dot(I32 sum, Bytes weights, Quads x) {
  return {vdotq_laneq_s32(sum.v, vreinterpretq_s8_u8(weights.v), x.v, Group)};
}
template <int Group>
static inline I32 dot_pinned(I32 sum, Bytes weights, Quads x) {
  asm volatile("sdot %0.4s, %1.16b, %2.4b[%3]" : "+w"(sum.v) : "w"(weights.v), "w"(x.v), "i"(Group));
  return sum;
}
template <int Group>
static inline I32 dot_wide_pinned(I32 sum, Bytes weights, Quads x) { return dot_pinned<Group>(sum, weights, x); }
template <int Group>
static inline I32 dot_wide(I32 sum, Bytes weights, Quads x) { return dot<Group>(sum, weights, x); }
template <bool Wide>
static inline void dot_two_pinned(I32& sum_x, I32& sum_z, const Bytes* weights, Quads x, Quads z) {
  asm volatile(
      "sdot %0.4s, %2.16b, %6.4b[0]\n\tsdot %1.4s, %2.16b, %7.4b[0]\n\t"
      "sdot %0.4s, %3.16b, %6.4b[1]\n\tsdot %1.4s, %3.16b, %7.4b[1]\n\t"
      "sdot %0.4s, %4.16b, %6.4b[2]\n\tsdot %1.4s, %4.16b, %7.4b[2]\n\t"
      "sdot %0.4s, %5.16b, %6.4b[3]\n\tsdot %1.4s, %5.16b, %7.4b[3]"
      : "+w"(sum_x.v), "+w"(sum_z.v)
      : "w"(weights[0].v), "w"(weights[1].v), "w"(weights[2].v), "w"(weights[3].v), "w"(x.v), "w"(z.v));
}
static inline F32 load_pinned(const float* p) { return {pinned<float32x4_t>(p)}; }
static inline Bytes load_bytes_pinned(const uint8_t* p) { return {pinned<uint8x16_t>(p)}; }
static inline Quads load_quads_pinned(const int8_t* p) { return {pinned<int8x16_t>(p)}; }
inline constexpr int kStartLanes = 4;
static inline I32 load_start(const int32_t* p) { return {pinned<int32x4_t>(p)}; }

static inline void keep(I32& a) { asm volatile("" : "+w"(a.v)); }
static inline void keep(F32& a) { asm volatile("" : "+w"(a.v)); }
static inline void keep(Bytes& a) { asm volatile("" : "+w"(a.v)); }
static inline I32 max(I32 a, I32 b) { return {vmaxq_s32(a.v, b.v)}; }
static inline void load_rows_u8(const uint8_t* p, I32 (&out)[kPanelVecs]) {
  // Table lookups, which give zero for 255: widening instructions would all wait for one unit.
  static constexpr uint8_t kPlaces[4][16] = {
      {0, 255, 255, 255, 1, 255, 255, 255, 2, 255, 255, 255, 3, 255, 255, 255},
      {4, 255, 255, 255, 5, 255, 255, 255, 6, 255, 255, 255, 7, 255, 255, 255},
      {8, 255, 255, 255, 9, 255, 255, 255, 10, 255, 255, 255, 11, 255, 255, 255},
      {12, 255, 255, 255, 13, 255, 255, 255, 14, 255, 255, 255, 15, 255, 255, 255},
  };
  const uint8x16_t bytes = vld1q_u8(p);
  for (int v = 0; v < kPanelVecs; ++v) out[v].v = vreinterpretq_s32_u8(vqtbl1q_u8(bytes, vld1q_u8(kPlaces[v])));
}
static inline void load_rows_i8(const uint8_t* p, I32 (&out)[kPanelVecs]) {
  const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(p));
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
  out[0].v = vmovl_s16(vget_low_s16(low));
  out[1].v = vmovl_high_s16(low);
  out[2].v = vmovl_s16(vget_low_s16(high));
  out[3].v = vmovl_high_s16(high);
}
static inline void load_rows_above(const uint8_t* p, F32 (&out)[kPanelVecs], uint8_t flips = 0) {
  // Table lookups from 16 bytes and as many of the exponent; 255 gives zero.
  static constexpr uint8_t kPlaces[4][16] = {
      {255, 0, 255, 16, 255, 1, 255, 16, 255, 2, 255, 16, 255, 3, 255, 16},
      {255, 4, 255, 16, 255, 5, 255, 16, 255, 6, 255, 16, 255, 7, 255, 16},
      {255, 8, 255, 16, 255, 9, 255, 16, 255, 10, 255, 16, 255, 11, 255, 16},
      {255, 12, 255, 16, 255, 13, 255, 16, 255, 14, 255, 16, 255, 15, 255, 16},
  };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  // Their calls between two loads do not keep what is in a named register.
  const uint8x16x2_t table = {{veorq_u8(vld1q_u8(p), vdupq_n_u8(flips)), vdupq_n_u8(0x47)}};
  for (int v = 0; v < kPanelVecs; ++v) out[v].v = vreinterpretq_f32_u8(vqtbl2q_u8(table, vld1q_u8(kPlaces[v])));
#else
  register uint8x16_t bytes asm("v30") = vld1q_u8(p);
  register uint8x16_t exponent asm("v31") = vdupq_n_u8(0x47);
  if (flips != 0) bytes = veorq_u8(bytes, vdupq_n_u8(flips));
  for (int v = 0; v < kPanelVecs; ++v) {
    asm("tbl %0.16b, {%1.16b, %2.16b}, %3.16b" : "=w"(out[v].v) : "w"(bytes), "w"(exponent), "w"(vld1q_u8(kPlaces[v])));
  }
#endif
}
static inline void load_signed_rows_above(const uint8_t* p, F32 (&out)[kPanelVecs]) { load_rows_above(p, out, 128); }
static inline void load_rows_power(const uint8_t* p, F32 (&out)[kPanelVecs]) {
  // Upper halves of the floats first: one unit alone shifts.
  const uint8x16_t bytes = pinned<uint8x16_t>(p);
  const uint16x8_t least = vdupq_n_u16(0x0040), none = vdupq_n_u16(0);
  const uint16x8_t low = vmaxq_u16(vshll_n_u8(vget_low_u8(bytes), 7), least);
  const uint16x8_t high = vmaxq_u16(vshll_high_n_u8(bytes, 7), least);
  out[0].v = vreinterpretq_f32_u16(vzip1q_u16(none, low));
  out[1].v = vreinterpretq_f32_u16(vzip2q_u16(none, low));
  out[2].v = vreinterpretq_f32_u16(vzip1q_u16(none, high));
  out[3].v = vreinterpretq_f32_u16(vzip2q_u16(none, high));
}
static inline F32 fma_scalar(F32 a, const float* b, F32 c) { return {vfmaq_n_f32(c.v, a.v, *b)}; }
static inline Scalars load_scalars(const float* p) { return {vld1q_f32(p)}; }
// fma and fma_lane as they stand: compilers put copies of c or of the lane before the intrinsics.
static inline F32 fma_in_place(F32 a, F32 b, F32 c) {
  asm("fmla %0.4s, %1.4s, %2.4s" : "+w"(c.v) : "w"(a.v), "w"(b.v));
  return c;
}
template <int Lane>
static inline F32 fma_lane(F32 a, Scalars b, F32 c) {
  asm("fmla %0.4s, %1.4s, %2.s[%3]" : "+w"(c.v) : "w"(a.v), "w"(b.v), "i"(Lane));
  return c;
}
static inline float largest_magnitude(const F32 (&x)[32 / kLanes]) {
  int32x4_t largest[4];
  for (int i = 0; i < 4; ++i) {
    largest[i] = vmaxq_s32(vreinterpretq_s32_f32(vabsq_f32(x[2 * i].v)),
                           vreinterpretq_s32_f32(vabsq_f32(x[2 * i + 1].v)));
  }
  const int32x4_t four = vmaxq_s32(vmaxq_s32(largest[0], largest[1]), vmaxq_s32(largest[2], largest[3]));
  return vgetq_lane_f32(vreinterpretq_f32_s32(vdupq_n_s32(vmaxvq_s32(four))), 0);
}
static inline int32_t store_rounded(int8_t* p, const F32 (&x)[32 / kLanes]) {
  const float32x4_t magic = vdupq_n_f32(12582912.0f);
  int16x8_t half[4];
  for (int i = 0; i < 4; ++i) {
    half[i] = vuzp1q_s16(vreinterpretq_s16_f32(vaddq_f32(x[2 * i].v, magic)),
                         vreinterpretq_s16_f32(vaddq_f32(x[2 * i + 1].v, magic)));
  }
  const int8x16_t first = vuzp1q_s8(vreinterpretq_s8_s16(half[0]), vreinterpretq_s8_s16(half[1]));
  const int8x16_t second = vuzp1q_s8(vreinterpretq_s8_s16(half[2]), vreinterpretq_s8_s16(half[3]));
  vst1q_s8(p, first);
  vst1q_s8(p + 16, second);
  const int8x16_t ones = vdupq_n_s8(1);
  return vaddvq_s32(vdotq_s32(vdotq_s32(vdupq_n_s32(0), first, ones), second, ones));
}

}  // namespace qeff::QEFF_ISA

#include "simd/neon_few.h"
#include "simd/neon_group.h"
#include "simd/neon_half.h"
#include "simd/neon_stream.h"
#include "simd/neon_strip.h"
