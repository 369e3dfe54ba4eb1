// What the block formats share: how codes are unpacked and how whole sums become floats.
//
// A block format is a struct with these members; kernels/linear_stream.h and linear_many.h are written over them:
//   kFormat        its WeightFormat
//   kUnitBlocks    blocks of 32 columns in a unit
//   kOffset        what every weight from unpack() has too much
//   kSteps         instructions that unpack a vector of weights, about
//   kWide          whether weights from unpack() are for dot_wide instead of dot
//   kSums          integer sums a block has: 1, or 2 for one of each half
//   kStart         what an integer sum begins with (below)
//   kScales        floats a row has in a block
//   Unit, open()   what the blocks of a unit share, read once
//   codes()        the codes of a block
//   group()        the weights of row vector v in four columns, group G of 8, the offset added; Pinned says how
//                  its loads are made
//   index(), base(), join()   where kSteps is more than 1: group() in three steps, which kernels may take for
//                  several vectors in turn
//   scales()       the scales of all rows in a block
//   product()      what the activations' scale is multiplied by in a block: an F32, or a Product of two
//   add()          result plus what a block adds to it; lane Lane of a has the activations' scale, that of a_sum
//                  its product with t
//   value()        one weight as float; for single rows
//
// Integer sums begin with the bits of a float of the form 1.5 * 2^n, so that S more of them is that
// float plus S units in the last place (|S| < 2^22 in every format): subtracting it gives S times a
// power of two as a float, exactly, without a conversion. Where d is a half-precision number,
// f32(S) * d is one fma(start + S, d, -start * d): that product is exact, so the one rounding is
// that of S * d.
//
// Include after the file named by QEFF_SIMD_HEADER.
#pragma once

#include "formats/layout.h"

namespace qeff::QEFF_ISA {

inline constexpr int32_t kStartWhole = 0x4B400000;  // 1.5 * 2^23: units of 1
inline constexpr float kStartWholeValue = 12582912.0f;

static inline const uint16_t* halves(const uint8_t* p) { return reinterpret_cast<const uint16_t*>(p); }

// d and -start * d from 16 half-precision numbers.
template <int N>
static inline void load_scales_f16(const uint8_t* p, F32 (&s)[N][kPanelVecs]) {
  for (int v = 0; v < kPanelVecs; ++v) {
    s[0][v] = load_f16(halves(p) + kLanes * v);
    s[1][v] = s[0][v] * set1(-kStartWholeValue);
  }
}
template <int N>
static inline F32 product_f16(I32 sum, const F32 (&s)[N]) { return fma_in_place(as_f32(sum), s[0], s[1]); }

template <bool Pinned>
static inline Bytes take(const uint8_t* p) {
  return Pinned ? load_bytes_pinned(p) : load_bytes(p);
}
// Group G of row vector v of 4-bit codes.
template <int G, bool Pinned>
static inline Bytes group_4bit(const uint8_t* codes, int v) {
  const Bytes both = take<Pinned>(codes + 64 * (G % 4) + kVecBytes * v);
  return G < 4 ? low_nibbles(both) : high_nibbles(both);
}

// The code of column k, row `row` of a block.
static inline int value_number(int k, int row) { return k / 4 * 64 + row * 4 + k % 4; }
static inline int code_4bit(const uint8_t* codes, int k, int row) {
  const int n = value_number(k, row);
  return n < 256 ? codes[n] & 15 : codes[n - 256] >> 4;
}
static inline int code_6bit(const uint8_t* codes, int k, int row) {
  const int n = value_number(k, row);
  return code_4bit(codes, k, row) | ((codes[256 + n % 128] >> (n / 128 * 2)) & 3) << 4;
}
static inline float half_at(const uint8_t* p, int i) {
  uint16_t h;
  std::memcpy(&h, p + 2 * i, 2);
  return half_to_float(h);
}

// 2^(e - 127) for the scales of the MX formats; e = 0 is below the normal numbers.
static inline void load_scales_e8m0(const uint8_t* p, F32 (&d)[kPanelVecs]) { load_rows_power(p, d); }
static inline float e8m0_value(uint8_t e) {
  const uint32_t bits = e == 0 ? 0x00400000u : static_cast<uint32_t>(e) << 23;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

}  // namespace qeff::QEFF_ISA
