// The SIMD layer on x86-64 with AVX2, FMA and F16C. simd/scalar.h says what each function means.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace qeff::QEFF_ISA {

inline constexpr int kLanes = 8;

struct F32 {
  __m256 v;
};
struct I32 {
  __m256i v;
};

static inline float half_to_float(uint16_t h) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h))); }
static inline uint16_t float_to_half(float f) {
  return static_cast<uint16_t>(_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(f), _MM_FROUND_TO_NEAREST_INT)));
}
static inline float bfloat_to_float(uint16_t b) {
  const uint32_t bits = static_cast<uint32_t>(b) << 16;
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
}

static inline F32 zero() { return {_mm256_setzero_ps()}; }
static inline F32 set1(float x) { return {_mm256_set1_ps(x)}; }
static inline F32 load(const float* p) { return {_mm256_loadu_ps(p)}; }
static inline void store(float* p, F32 a) { _mm256_storeu_ps(p, a.v); }
static inline F32 load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
static inline F32 load_bf16(const uint16_t* p) {
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16))};
}
static inline F32 operator+(F32 a, F32 b) { return {_mm256_add_ps(a.v, b.v)}; }
static inline F32 operator-(F32 a, F32 b) { return {_mm256_sub_ps(a.v, b.v)}; }
static inline F32 operator*(F32 a, F32 b) { return {_mm256_mul_ps(a.v, b.v)}; }
static inline F32 operator/(F32 a, F32 b) { return {_mm256_div_ps(a.v, b.v)}; }
static inline F32 fma(F32 a, F32 b, F32 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
struct Spread {
  constexpr explicit Spread(float x) : v(x) {}
  float v;
};
static inline F32 fma_onto(F32 a, F32 b, const Spread& c) { return fma(a, b, set1(c.v)); }
static inline F32 min(F32 a, F32 b) { return {_mm256_min_ps(a.v, b.v)}; }
static inline F32 max(F32 a, F32 b) { return {_mm256_max_ps(a.v, b.v)}; }
static inline F32 abs(F32 a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
static inline F32 sqrt(F32 a) { return {_mm256_sqrt_ps(a.v)}; }
static inline F32 round(F32 a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
static inline F32 select_positive(F32 m, F32 a, F32 b) {
  return {_mm256_blendv_ps(b.v, a.v, _mm256_cmp_ps(m.v, _mm256_setzero_ps(), _CMP_GT_OQ))};
}
static inline float reduce_add(F32 a) {
  const __m128 half = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 pair = _mm_add_ps(half, _mm_movehdup_ps(half));  // 0 + 1 and 2 + 3
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehl_ps(pair, pair)));
}
static inline float reduce_max(F32 a) {
  const __m128 half = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 pair = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
}

static inline I32 set1_i32(int32_t x) { return {_mm256_set1_epi32(x)}; }
static inline I32 load_i32(const int32_t* p) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))}; }
static inline void store_i32(int32_t* p, I32 a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v); }
static inline I32 operator+(I32 a, I32 b) { return {_mm256_add_epi32(a.v, b.v)}; }
static inline I32 operator*(I32 a, I32 b) { return {_mm256_mullo_epi32(a.v, b.v)}; }
static inline I32 operator&(I32 a, I32 b) { return {_mm256_and_si256(a.v, b.v)}; }
template <int N>
static inline I32 shift_left(I32 a) { return {_mm256_slli_epi32(a.v, N)}; }
static inline F32 to_f32(I32 a) { return {_mm256_cvtepi32_ps(a.v)}; }
static inline F32 as_f32(I32 a) { return {_mm256_castsi256_ps(a.v)}; }
static inline I32 as_i32(F32 a) { return {_mm256_castps_si256(a.v)}; }

struct Four {
  const float* p;
};
static inline Four load_four(const float* p) { return {p}; }
template <int I>
static inline F32 fma_spread(F32 a, Four b, F32 c) { return fma(a, set1(b.p[I]), c); }
struct Halves {
  const uint16_t* p;
};
static inline Halves load_halves(const uint16_t* p) { return {p}; }
template <int I>
static inline F32 widen(const Halves& a) { return load_f16(a.p + I * kLanes); }
static inline F32 zero_pinned() { return zero(); }
static inline void load_i8x16(const int8_t* p, F32* out) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  out[0].v = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
  out[1].v = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)));
}

inline constexpr int kPanelVecs = 16 / kLanes;
inline constexpr int kVecBytes = 4 * kLanes;
inline constexpr int kTileVecs = 1;
inline constexpr int kTileTokens = 4;
inline constexpr int kFloatTileTokens = 4;
inline constexpr bool kHasStrips = false;
struct StripUnit {};
struct FewUnit {};
struct GroupUnit {};
inline constexpr bool kHasStreamUnit = false;
struct StreamUnit {};
inline constexpr bool kHasHalfUnit = false;
struct HalfUnit {};
inline constexpr int kStreamStep = 1;
inline constexpr int kStreamAhead = 0;
inline constexpr bool kHasTileUnit = false;
struct TileUnit {};

struct Bytes {
  __m256i v;
};
// Activations and factors stay in memory: each use spreads four bytes from there.
struct Quads {
  const int8_t* p;
};
struct Scalars {
  const float* p;
};
struct Table16 {
  __m256i v;
};

static inline Bytes load_bytes(const uint8_t* p) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))}; }
static inline void store_bytes(uint8_t* p, Bytes a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v); }
static inline Bytes low_nibbles(Bytes a) { return {_mm256_and_si256(a.v, _mm256_set1_epi8(15))}; }
static inline Bytes minus(Bytes a, int n) { return {_mm256_sub_epi8(a.v, _mm256_set1_epi8(static_cast<char>(n)))}; }
static inline Bytes low_five(Bytes a) { return {_mm256_and_si256(a.v, _mm256_set1_epi8(31))}; }
static inline Bytes high_nibbles(Bytes a) {
  return {_mm256_and_si256(_mm256_srli_epi16(a.v, 4), _mm256_set1_epi8(15))};
}
template <int Field, int At>
static inline Bytes insert_two_bits(Bytes a, Bytes b) {
  // Shifts move pairs of bytes; what crosses from one byte to the other is masked out.
  if constexpr (At > 2 * Field) b.v = _mm256_slli_epi16(b.v, At - 2 * Field);
  if constexpr (At < 2 * Field) b.v = _mm256_srli_epi16(b.v, 2 * Field - At);
  const __m256i mask = _mm256_set1_epi8(3 << At);
  return {_mm256_or_si256(_mm256_and_si256(mask, b.v), _mm256_andnot_si256(mask, a.v))};
}
template <int G>
static inline Bytes two_more_bits(Bytes high) { return high; }
template <int G>
static inline Bytes six_bits(Bytes both, Bytes more) {
  return insert_two_bits<G / 2, 4>(G < 4 ? low_nibbles(both) : high_nibbles(both), more);
}
static inline Table16 load_table16(const uint8_t* p) {
  return {_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
static inline Bytes lookup(Table16 table, Bytes index) { return {_mm256_shuffle_epi8(table.v, index.v)}; }
struct Table32 {
  __m256i low, high;
};
static inline Table32 load_table32(const uint8_t* p) { return {load_table16(p).v, load_table16(p + 16).v}; }
static inline Bytes lookup(Table32 table, Bytes index) {
  const __m256i low = _mm256_shuffle_epi8(table.low, index.v), high = _mm256_shuffle_epi8(table.high, index.v);
  return {_mm256_blendv_epi8(low, high, _mm256_slli_epi16(index.v, 3))};  // by bit 4
}
template <int N>
static inline Bytes add_high(Bytes a, Bytes b) {
  const __m256i high = _mm256_and_si256(_mm256_srli_epi16(b.v, N), _mm256_set1_epi8(255 >> N));
  return {_mm256_add_epi8(a.v, high)};
}
inline constexpr int kWideBias = 0;
static inline Bytes wide_weights(Bytes a) { return a; }

static inline Quads load_quads(const int8_t* p) { return {p}; }
static inline __m256i spread_quad(const int8_t* p) {
  int32_t four;
  std::memcpy(&four, p, 4);
  return _mm256_set1_epi32(four);
}
// Two products of at most 127 * 127 fit 16 bits, so nothing saturates; nor do two of 128 * 127 below.
template <int Group>
static inline I32 dot(I32 sum, Bytes weights, Quads x) {
  const __m256i pairs = _mm256_maddubs_epi16(weights.v, spread_quad(x.p + 4 * Group));
  return {_mm256_add_epi32(sum.v, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))};
}
template <int Group>
static inline I32 dot_wide(I32 sum, Bytes weights, Quads x) {
  // The instruction takes unsigned weights: their signs go to the activations.
  const __m256i signed_x = _mm256_sign_epi8(spread_quad(x.p + 4 * Group), weights.v);
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights.v), signed_x);
  return {_mm256_add_epi32(sum.v, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))};
}

static inline void keep(I32& a) { asm volatile("" : "+x"(a.v)); }
static inline void keep(F32& a) { asm volatile("" : "+x"(a.v)); }
static inline void keep(Bytes& a) { asm volatile("" : "+x"(a.v)); }
static inline I32 max(I32 a, I32 b) { return {_mm256_max_epi32(a.v, b.v)}; }
static inline void load_rows_u8(const uint8_t* p, I32 (&out)[kPanelVecs]) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  out[0].v = _mm256_cvtepu8_epi32(bytes);
  out[1].v = _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8));
}
static inline void load_rows_i8(const uint8_t* p, I32 (&out)[kPanelVecs]) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  out[0].v = _mm256_cvtepi8_epi32(bytes);
  out[1].v = _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8));
}
static inline void load_rows_above(const uint8_t* p, F32 (&out)[kPanelVecs]) {
  I32 n[kPanelVecs];
  load_rows_u8(p, n);
  for (int v = 0; v < kPanelVecs; ++v) out[v] = as_f32(shift_left<8>(n[v]) + set1_i32(0x47000000));
}
static inline void load_signed_rows_above(const uint8_t* p, F32 (&out)[kPanelVecs]) {
  I32 n[kPanelVecs];
  load_rows_i8(p, n);
  for (int v = 0; v < kPanelVecs; ++v) out[v] = as_f32(shift_left<8>(n[v] + set1_i32(128)) + set1_i32(0x47000000));
}
static inline float largest_magnitude(const F32 (&x)[32 / kLanes]) {
  const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
  __m256i eight = _mm256_setzero_si256();
  for (const F32& v : x) eight = _mm256_max_epi32(eight, _mm256_and_si256(_mm256_castps_si256(v.v), magnitude));
  const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_max_epi32(four, _mm_unpackhi_epi64(four, four));
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epi32(two, _mm_shuffle_epi32(two, 1))));
}
static inline void load_rows_power(const uint8_t* p, F32 (&out)[kPanelVecs]) {
  I32 e[kPanelVecs];
  load_rows_u8(p, e);
  for (int v = 0; v < kPanelVecs; ++v) out[v] = as_f32(max(shift_left<23>(e[v]), set1_i32(0x00400000)));
}
static inline int32_t store_rounded(int8_t* p, const F32 (&x)[32 / kLanes]) {
  __m256i whole[4];
  for (int i = 0; i < 4; ++i) whole[i] = _mm256_cvtps_epi32(x[i].v);
  // Packing works on halves of the registers; the permutation puts the quarters in order.
  const __m256i low = _mm256_packs_epi32(whole[0], whole[1]), high = _mm256_packs_epi32(whole[2], whole[3]);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bytes);
  const __m256i eight = _mm256_add_epi32(_mm256_add_epi32(whole[0], whole[1]), _mm256_add_epi32(whole[2], whole[3]));
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
  return _mm_cvtsi128_si32(two) + _mm_extract_epi32(two, 1);
}

template <int Group>
static inline I32 dot_pinned(I32 sum, Bytes weights, Quads x) { return dot<Group>(sum, weights, x); }
template <int Group>
static inline I32 dot_wide_pinned(I32 sum, Bytes weights, Quads x) { return dot_wide<Group>(sum, weights, x); }
template <bool Wide>
static inline void dot_two_pinned(I32& sum_x, I32& sum_z, const Bytes* weights, Quads x, Quads z) {
  const auto add = [weights](I32 sum, Quads of_token) {
    if constexpr (Wide) {
      sum = dot_wide<1>(dot_wide<0>(sum, weights[0], of_token), weights[1], of_token);
      return dot_wide<3>(dot_wide<2>(sum, weights[2], of_token), weights[3], of_token);
    } else {
      sum = dot<1>(dot<0>(sum, weights[0], of_token), weights[1], of_token);
      return dot<3>(dot<2>(sum, weights[2], of_token), weights[3], of_token);
    }
  };
  sum_x = add(sum_x, x);
  sum_z = add(sum_z, z);
}
static inline F32 load_pinned(const float* p) { return load(p); }
static inline Bytes load_bytes_pinned(const uint8_t* p) { return load_bytes(p); }
static inline Quads load_quads_pinned(const int8_t* p) { return load_quads(p); }
inline constexpr int kStartLanes = 1;
static inline I32 load_start(const int32_t* p) { return set1_i32(*p); }
static inline F32 fma_scalar(F32 a, const float* b, F32 c) { return fma(a, set1(*b), c); }
static inline Scalars load_scalars(const float* p) { return {p}; }
static inline F32 fma_in_place(F32 a, F32 b, F32 c) { return fma(a, b, c); }
template <int Lane>
static inline F32 fma_lane(F32 a, Scalars b, F32 c) { return fma(a, set1(b.p[Lane]), c); }

}  // namespace qeff::QEFF_ISA
