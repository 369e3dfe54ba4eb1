// The SIMD layer without instructions of its own: right on every processor, and the form that
// every other file of this folder has to follow.
//
// Each file defines, in the namespace of its instruction set: F32 (kLanes floats), I32 (kLanes
// 32-bit integers) and functions on them. Kernels include the file named by QEFF_SIMD_HEADER and
// use nothing else. fma(a, b, c) is a * b + c with one rounding on every instruction set.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace qeff::QEFF_ISA {

inline constexpr int kLanes = 4;

struct F32 {
  float v[4];
};
struct I32 {
  int32_t v[4];
};

#define QEFF_LANES for (int i = 0; i < 4; ++i)

static inline float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t magnitude = h & 0x7FFFu;
  uint32_t bits;
  if (magnitude >= 0x7C00u) {  // infinity and NaN
    bits = sign | 0x7F800000u | ((magnitude & 0x3FFu) << 13);
  } else if (magnitude >= 0x0400u) {
    bits = sign | ((magnitude << 13) + 0x38000000u);
  } else {  // subnormal: magnitude units of 2^-24
    const float value = static_cast<float>(magnitude) * 5.9604644775390625e-08f;
    std::memcpy(&bits, &value, 4);
    bits |= sign;
  }
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
}

static inline uint16_t float_to_half(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u);
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // rounds to infinity
  if (magnitude < 0x38800000u) {  // subnormal half: in units of 2^-24, nearest, ties to even
    float scaled;
    std::memcpy(&scaled, &magnitude, 4);
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyintf(scaled * 16777216.0f)));
  }
  const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u) - 0x38000000u;
  return static_cast<uint16_t>(sign | (rounded >> 13));
}

static inline float bfloat_to_float(uint16_t b) {
  const uint32_t bits = static_cast<uint32_t>(b) << 16;
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
}

static inline F32 zero() { return {{0, 0, 0, 0}}; }
static inline F32 set1(float x) { return {{x, x, x, x}}; }
static inline F32 load(const float* p) { F32 r; std::memcpy(r.v, p, sizeof r.v); return r; }
static inline void store(float* p, F32 a) { std::memcpy(p, a.v, sizeof a.v); }
static inline F32 load_f16(const uint16_t* p) { F32 r; QEFF_LANES r.v[i] = half_to_float(p[i]); return r; }
static inline F32 load_bf16(const uint16_t* p) { F32 r; QEFF_LANES r.v[i] = bfloat_to_float(p[i]); return r; }
static inline F32 operator+(F32 a, F32 b) { QEFF_LANES a.v[i] += b.v[i]; return a; }
static inline F32 operator-(F32 a, F32 b) { QEFF_LANES a.v[i] -= b.v[i]; return a; }
static inline F32 operator*(F32 a, F32 b) { QEFF_LANES a.v[i] *= b.v[i]; return a; }
static inline F32 operator/(F32 a, F32 b) { QEFF_LANES a.v[i] /= b.v[i]; return a; }
static inline F32 fma(F32 a, F32 b, F32 c) { QEFF_LANES c.v[i] = std::fma(a.v[i], b.v[i], c.v[i]); return c; }
// A number that fma_onto adds to a product in every lane. Where an fma overwrites what it adds to, it comes from memory
// each time, which costs less than a copy from a register.
struct Spread {
  constexpr explicit Spread(float x) : v(x) {}
  float v;
};
static inline F32 fma_onto(F32 a, F32 b, const Spread& c) { return fma(a, b, set1(c.v)); }
// min and max: a NaN in b is the result; what they give for a NaN in a alone is not fixed.
static inline F32 min(F32 a, F32 b) { QEFF_LANES a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]; return a; }
static inline F32 max(F32 a, F32 b) { QEFF_LANES a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }
static inline F32 abs(F32 a) { QEFF_LANES a.v[i] = std::fabs(a.v[i]); return a; }
static inline F32 sqrt(F32 a) { QEFF_LANES a.v[i] = std::sqrt(a.v[i]); return a; }
static inline F32 round(F32 a) { QEFF_LANES a.v[i] = std::nearbyintf(a.v[i]); return a; }  // halves to even
// a where the lane of m is greater than zero, else b.
static inline F32 select_positive(F32 m, F32 a, F32 b) { QEFF_LANES a.v[i] = m.v[i] > 0 ? a.v[i] : b.v[i]; return a; }
// More than four lanes: the upper half is added to the lower until four are left.
static inline float reduce_add(F32 a) { return (a.v[0] + a.v[1]) + (a.v[2] + a.v[3]); }
static inline float reduce_max(F32 a) { float m = a.v[0]; QEFF_LANES m = a.v[i] > m ? a.v[i] : m; return m; }

static inline I32 set1_i32(int32_t x) { return {{x, x, x, x}}; }
static inline I32 load_i32(const int32_t* p) { I32 r; std::memcpy(r.v, p, sizeof r.v); return r; }
static inline void store_i32(int32_t* p, I32 a) { std::memcpy(p, a.v, sizeof a.v); }
static inline I32 operator+(I32 a, I32 b) {
  QEFF_LANES a.v[i] = static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) + static_cast<uint32_t>(b.v[i]));
  return a;
}
static inline I32 operator*(I32 a, I32 b) {
  QEFF_LANES a.v[i] = static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) * static_cast<uint32_t>(b.v[i]));
  return a;
}
static inline I32 operator&(I32 a, I32 b) { QEFF_LANES a.v[i] &= b.v[i]; return a; }
template <int N>
static inline I32 shift_left(I32 a) {
  QEFF_LANES a.v[i] = static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) << N);
  return a;
}
static inline F32 to_f32(I32 a) { F32 r; QEFF_LANES r.v[i] = static_cast<float>(a.v[i]); return r; }
static inline F32 as_f32(I32 a) { F32 r; std::memcpy(r.v, a.v, sizeof r.v); return r; }
static inline I32 as_i32(F32 a) { I32 r; std::memcpy(r.v, a.v, sizeof r.v); return r; }

// Four floats, each of which fma_spread can multiply all lanes by.
struct Four {
  float v[4];
};
static inline Four load_four(const float* p) { Four r; std::memcpy(r.v, p, sizeof r.v); return r; }
// a * b[I] + c
template <int I>
static inline F32 fma_spread(F32 a, Four b, F32 c) { return fma(a, set1(b.v[I]), c); }
// 16 halves as they lie in memory, and the floats of the I-th kLanes of them.
struct Halves {
  uint16_t v[16];
};
static inline Halves load_halves(const uint16_t* p) { Halves r; std::memcpy(r.v, p, sizeof r.v); return r; }
template <int I>
static inline F32 widen(const Halves& a) { return load_f16(a.v + I * kLanes); }
static inline F32 zero_pinned() { return zero(); }  // made anew, not a copy of another register
// 16 signed bytes as 16 / kLanes vectors of floats.
static inline void load_i8x16(const int8_t* p, F32* out) {
  for (int j = 0; j < 4; ++j) QEFF_LANES out[j].v[i] = static_cast<float>(p[4 * j + i]);
}

// Integer dot products and the panels of docs/panels.md. Lane i of an I32 or F32 belongs to row i of
// kLanes neighbouring rows; a Bytes holds four neighbouring columns of each of these rows, row by row.
inline constexpr int kPanelVecs = 16 / kLanes;  // vectors that cover the rows of a panel
inline constexpr int kVecBytes = 4 * kLanes;
// What the many-token kernels keep in registers at once: row vectors and tokens (4 at least), and tokens of
// those that multiply floats.
inline constexpr int kTileVecs = 1;
inline constexpr int kTileTokens = 4;
inline constexpr int kFloatTileTokens = 4;
// Whether few tokens are multiplied by strips: one row vector, whose codes are unpacked between dot products. For
// processors where storing unpacked codes takes long. Tiles have any even number of tokens there.
inline constexpr bool kHasStrips = false;
// Multiplies a strip of 8 tokens there: simd/neon_strip.h.
struct StripUnit {};
// The same for fewer: simd/neon_few.h.
struct FewUnit {};
// The same for formats with one scale a block, any number of tokens from 3 to 8: simd/neon_group.h.
struct GroupUnit {};
// Multiplies a panel of MXFP6 with one token, where there is one: simd/neon_stream.h.
inline constexpr bool kHasStreamUnit = false;
struct StreamUnit {};
// Blocks that one token is multiplied with before the results are added.
inline constexpr int kStreamStep = 1;
// How many bytes ahead one token asks for weights: far enough to be there in time, near enough to stay. 0: not at all.
inline constexpr int kStreamAhead = 0;
// Products of halves, where the processors of the family multiply them faster than floats; the others need not define
// them. Every sum, and every product with what it is added to, is rounded once, to nearest, halves to even.
#if defined(__aarch64__)
inline constexpr bool kHasHalfUnit = true;
struct HalfUnit {
  struct Vec {
    uint16_t v[8];
  };
  static inline Vec zero() { return {}; }
  static inline Vec load(const uint16_t* p) { Vec r; std::memcpy(r.v, p, sizeof r.v); return r; }
  static inline Vec load_factors(const uint16_t* p) { return load(p); }  // for fma_lane
  static inline Vec spread(const uint16_t* p) { return {{*p, *p, *p, *p, *p, *p, *p, *p}}; }
  static inline Vec add(Vec a, Vec b) {
    for (int i = 0; i < 8; ++i) a.v[i] = float_to_half(half_to_float(a.v[i]) + half_to_float(b.v[i]));
    return a;
  }
  // a * b + c. A double is exact, or so far from any number halfway between two halves that it is rounded right.
  [[gnu::noinline]] static Vec fma(Vec a, Vec b, Vec c) {
    for (int i = 0; i < 8; ++i) c.v[i] = rounded(product(a.v[i], b.v[i]) + half_to_float(c.v[i]));
    return c;
  }
  template <int I>
  static inline Vec fma_lane(Vec a, Vec b, Vec c) { return fma(a, spread(b.v + I), c); }
  static inline void widen(Vec a, F32 (&out)[2]) {
    out[0] = load_f16(a.v);
    out[1] = load_f16(a.v + 4);
  }
  static inline void store(uint16_t* p, F32 low, F32 high) {
    for (int i = 0; i < 4; ++i) {
      p[i] = float_to_half(low.v[i]);
      p[4 + i] = float_to_half(high.v[i]);
    }
  }

 private:
  static inline double product(uint16_t a, uint16_t b) {
    return static_cast<double>(half_to_float(a)) * static_cast<double>(half_to_float(b));
  }
  static inline uint16_t rounded(double x) {
    const __fp16 half = static_cast<__fp16>(x);
    uint16_t h;
    std::memcpy(&h, &half, 2);
    return h;
  }
};
#else
inline constexpr bool kHasHalfUnit = false;
struct HalfUnit {};
#endif
// A unit for whole tiles of products, where there is one: simd/amx.h.
inline constexpr bool kHasTileUnit = false;
struct TileUnit {};

struct Bytes {
  uint8_t v[16];
};
struct Quads {  // 16 activations of one token: four groups of four neighbouring columns
  int8_t v[16];
};
struct Scalars {  // 4 floats that are used one by one
  float v[4];
};

#define QEFF_BYTES for (int i = 0; i < 16; ++i)

static inline Bytes load_bytes(const uint8_t* p) { Bytes r; std::memcpy(r.v, p, sizeof r.v); return r; }
static inline void store_bytes(uint8_t* p, Bytes a) { std::memcpy(p, a.v, sizeof a.v); }
static inline Bytes low_nibbles(Bytes a) { QEFF_BYTES a.v[i] &= 15; return a; }
static inline Bytes low_five(Bytes a) { QEFF_BYTES a.v[i] &= 31; return a; }  // bits
static inline Bytes high_nibbles(Bytes a) { QEFF_BYTES a.v[i] >>= 4; return a; }
// a - n, modulo 256.
static inline Bytes minus(Bytes a, int n) { QEFF_BYTES a.v[i] = static_cast<uint8_t>(a.v[i] - n); return a; }
// a with bits At and At + 1 taken from the two-bit field number Field (0 to 3) of b.
template <int Field, int At>
static inline Bytes insert_two_bits(Bytes a, Bytes b) {
  QEFF_BYTES a.v[i] = static_cast<uint8_t>((a.v[i] & ~(3 << At)) | (((b.v[i] >> (2 * Field)) & 3) << At));
  return a;
}
// Weights of group G of 6-bit codes, from bytes with their low four bits and what two_more_bits makes of bytes with
// the others.
template <int G>
static inline Bytes two_more_bits(Bytes high) { return high; }
template <int G>
static inline Bytes six_bits(Bytes both, Bytes more) {
  return insert_two_bits<G / 2, 4>(G < 4 ? low_nibbles(both) : high_nibbles(both), more);
}
struct Table16 {
  uint8_t v[16];
};
static inline Table16 load_table16(const uint8_t* p) { Table16 r; std::memcpy(r.v, p, sizeof r.v); return r; }
// table[index] of each byte; an index is less than 16.
static inline Bytes lookup(Table16 table, Bytes index) { QEFF_BYTES index.v[i] = table.v[index.v[i]]; return index; }
struct Table32 {
  uint8_t v[32];
};
static inline Table32 load_table32(const uint8_t* p) { Table32 r; std::memcpy(r.v, p, sizeof r.v); return r; }
// The same with indices less than 32.
static inline Bytes lookup(Table32 table, Bytes index) { QEFF_BYTES index.v[i] = table.v[index.v[i]]; return index; }
// a plus b / 2^N rounded down, modulo 256.
template <int N>
static inline Bytes add_high(Bytes a, Bytes b) {
  QEFF_BYTES a.v[i] = static_cast<uint8_t>(a.v[i] + (b.v[i] >> N));
  return a;
}
// Signed weights in the form that dot_wide takes: plus kWideBias, modulo 256.
inline constexpr int kWideBias = 0;
static inline Bytes wide_weights(Bytes a) { return a; }

static inline Quads load_quads(const int8_t* p) { Quads r; std::memcpy(r.v, p, sizeof r.v); return r; }
// Adds to each row the products of its four weights, 0 to 127, with group Group of the activations.
template <int Group>
[[gnu::noinline]] static I32 dot(I32 sum, Bytes weights, Quads x) {
  QEFF_BYTES sum.v[i / 4] += static_cast<int8_t>(weights.v[i]) * x.v[4 * Group + i % 4];
  return sum;
}
// The same for signed weights from wide_weights; the sum has kWideBias times that of x added.
template <int Group>
static inline I32 dot_wide(I32 sum, Bytes weights, Quads x) { return dot<Group>(sum, weights, x); }
// What stays where the source has it. A kernel that counts its registers wants no load moved up, a register
// move in place of a second load would take turns with dot products, and the order of dot products matters.
template <int Group>
static inline I32 dot_pinned(I32 sum, Bytes weights, Quads x) { return dot<Group>(sum, weights, x); }
template <int Group>
static inline I32 dot_wide_pinned(I32 sum, Bytes weights, Quads x) { return dot_wide<Group>(sum, weights, x); }
// The four groups of half a block for two tokens.
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
// First value of an integer sum: kStartLanes copies in memory, one in every lane of the register.
inline constexpr int kStartLanes = 1;
static inline I32 load_start(const int32_t* p) { return set1_i32(*p); }

// Keeps a compiler from finding out beforehand what a value will be, and from making it later.
static inline void keep(I32& a) { asm volatile("" : "+m"(a.v)); }
static inline void keep(F32& a) { asm volatile("" : "+m"(a.v)); }
static inline void keep(Bytes& a) { asm volatile("" : "+m"(a.v)); }
static inline I32 max(I32 a, I32 b) { QEFF_LANES a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }
// 16 unsigned bytes, one a row of a panel, as integers.
static inline void load_rows_u8(const uint8_t* p, I32 (&out)[kPanelVecs]) {
  for (int v = 0; v < kPanelVecs; ++v) QEFF_LANES out[v].v[i] = p[kLanes * v + i];
}
static inline void load_rows_i8(const uint8_t* p, I32 (&out)[kPanelVecs]) {  // the same for signed bytes
  for (int v = 0; v < kPanelVecs; ++v) QEFF_LANES out[v].v[i] = static_cast<int8_t>(p[kLanes * v + i]);
}
// 32768 plus each of 16 unsigned bytes, one a row of a panel, as floats.
static inline void load_rows_above(const uint8_t* p, F32 (&out)[kPanelVecs]) {
  for (int v = 0; v < kPanelVecs; ++v) QEFF_LANES out[v].v[i] = 32768.0f + static_cast<float>(p[kLanes * v + i]);
}
// The same for signed bytes plus 128.
static inline void load_signed_rows_above(const uint8_t* p, F32 (&out)[kPanelVecs]) {
  for (int v = 0; v < kPanelVecs; ++v) QEFF_LANES out[v].v[i] = 32768.0f + static_cast<float>(p[kLanes * v + i] ^ 128);
}
// 2^(byte - 127) of 16 bytes, one a row of a panel; that of 0 is below the normal numbers.
static inline void load_rows_power(const uint8_t* p, F32 (&out)[kPanelVecs]) {
  I32 e[kPanelVecs];
  load_rows_u8(p, e);
  for (int v = 0; v < kPanelVecs; ++v) out[v] = as_f32(max(shift_left<23>(e[v]), set1_i32(0x00400000)));
}
// a * *b + c.
static inline F32 fma_scalar(F32 a, const float* b, F32 c) { return fma(a, set1(*b), c); }
static inline Scalars load_scalars(const float* p) { Scalars r; std::memcpy(r.v, p, sizeof r.v); return r; }
// fma where c is not used again.
static inline F32 fma_in_place(F32 a, F32 b, F32 c) { return fma(a, b, c); }
// a * b[Lane] + c.
template <int Lane>
static inline F32 fma_lane(F32 a, Scalars b, F32 c) { return fma(a, set1(b.v[Lane]), c); }
// The largest magnitude of 32 floats; NaN where one of them is NaN.
static inline float largest_magnitude(const F32 (&x)[32 / kLanes]) {
  I32 largest = set1_i32(0);  // magnitudes are ordered as their bits are, with NaN above all
  for (const F32& v : x) largest = max(as_i32(abs(v)), largest);
  QEFF_LANES largest.v[0] = largest.v[i] > largest.v[0] ? largest.v[i] : largest.v[0];
  return as_f32(largest).v[0];
}
// Rounds 32 floats between -127.5 and 127.5 to int8, halves to even, stores them and returns their sum. Where one of
// them is NaN it stores and returns anything.
static inline int32_t store_rounded(int8_t* p, const F32 (&x)[32 / kLanes]) {
  int32_t sum = 0;
  for (int v = 0; v < 32 / kLanes; ++v) {
    // Added to this number, another is rounded to a whole one, which stands in the lowest bits.
    const I32 whole = as_i32(x[v] + set1(12582912.0f));
    QEFF_LANES {
      p[kLanes * v + i] = static_cast<int8_t>(whole.v[i] & 255);
      sum += p[kLanes * v + i];
    }
  }
  return sum;
}

#undef QEFF_BYTES
#undef QEFF_LANES

}  // namespace qeff::QEFF_ISA
