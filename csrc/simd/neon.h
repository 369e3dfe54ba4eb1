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
static inline void store_f16(uint16_t* p, F32 a) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a.v))); }
static inline F32 operator+(F32 a, F32 b) { return {vaddq_f32(a.v, b.v)}; }
static inline F32 operator-(F32 a, F32 b) { return {vsubq_f32(a.v, b.v)}; }
static inline F32 operator*(F32 a, F32 b) { return {vmulq_f32(a.v, b.v)}; }
static inline F32 operator/(F32 a, F32 b) { return {vdivq_f32(a.v, b.v)}; }
static inline F32 fma(F32 a, F32 b, F32 c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
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
static inline I32 to_i32(F32 a) { return {vcvtnq_s32_f32(a.v)}; }
static inline F32 as_f32(I32 a) { return {vreinterpretq_f32_s32(a.v)}; }
static inline I32 as_i32(F32 a) { return {vreinterpretq_s32_f32(a.v)}; }

struct Four {
  float32x4_t v;
};
static inline Four load_four(const float* p) { return {vld1q_f32(p)}; }
template <int I>
static inline F32 fma_spread(F32 a, Four b, F32 c) { return {vfmaq_laneq_f32(c.v, a.v, b.v, I)}; }
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
inline constexpr int kStreamStep = 2;
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
static inline Bytes high_nibbles(Bytes a) { return {vshrq_n_u8(a.v, 4)}; }
template <int Field, int At>
static inline Bytes insert_two_bits(Bytes a, Bytes b) {
  if constexpr (At > 2 * Field) b.v = vshlq_n_u8(b.v, At - 2 * Field);
  if constexpr (At < 2 * Field) b.v = vshrq_n_u8(b.v, 2 * Field - At);
  // As an instruction, since compilers often copy b to overwrite it.
  asm("bit %0.16b, %1.16b, %2.16b" : "+w"(a.v) : "w"(b.v), "w"(vdupq_n_u8(3 << At)));
  return a;
}
static inline Table16 load_table16(const uint8_t* p) { return {vld1q_u8(p)}; }
static inline Bytes lookup(Table16 table, Bytes index) { return {vqtbl1q_u8(table.v, index.v)}; }
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
template <class Vector>
static inline Vector pinned(const void* p) {
  Vector v;
  asm volatile("ldr %q0, %1" : "=w"(v) : "m"(*static_cast<const Vector*>(p)));
  return v;
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
static inline int32_t store_rounded(int8_t* p, const F32 (&x)[32 / kLanes]) {
  int16x8_t half[4];
  for (int i = 0; i < 4; ++i) {
    half[i] = vcombine_s16(vmovn_s32(vcvtnq_s32_f32(x[2 * i].v)), vmovn_s32(vcvtnq_s32_f32(x[2 * i + 1].v)));
  }
  vst1q_s8(p, vcombine_s8(vmovn_s16(half[0]), vmovn_s16(half[1])));
  vst1q_s8(p + 16, vcombine_s8(vmovn_s16(half[2]), vmovn_s16(half[3])));
  return vaddvq_s16(vaddq_s16(vaddq_s16(half[0], half[1]), vaddq_s16(half[2], half[3])));
}

}  // namespace qeff::QEFF_ISA
