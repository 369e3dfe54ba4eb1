// Weights of 6 bits in units of 256 columns: a half-precision scale for a unit, multiplied by a whole number for
// every 16 columns. formats/codes.h says what the members are.
#pragma once

#include "formats/codes.h"

namespace qeff::QEFF_ISA {

struct Q6_K {
  static constexpr WeightFormat kFormat = WeightFormat::kQ6_K;
  static constexpr int kUnitBlocks = 8, kSums = 2, kScales = 4;
  static constexpr int32_t kOffset = 32, kStart = kStartWhole;
  static constexpr int kSteps = 3;
  static constexpr bool kWide = false;
  static constexpr int kBlockBytes = 416, kHeadBytes = 32;
  struct Unit {
    F32 d[kPanelVecs], d_excess[kPanelVecs];  // d, and that times what load_signed_rows_above() has too much, negated
  };
  struct Product {
    F32 of_half[2];
  };

  static inline Unit open(const uint8_t* unit) {
    Unit u;
    for (int v = 0; v < kPanelVecs; ++v) {
      u.d[v] = load_f16(halves(unit) + kLanes * v);
      u.d_excess[v] = u.d[v] * set1(-32768.0f - 128.0f);
    }
    return u;
  }
  static inline const uint8_t* block_at(const uint8_t* unit, int block) {
    return unit + kHeadBytes + kBlockBytes * block;
  }
  static inline const uint8_t* codes(const uint8_t* unit, int block) { return block_at(unit, block) + 32; }
  template <int G, bool Pinned>
  static inline Bytes index(const uint8_t* codes, int v) {
    return two_more_bits<G>(take<Pinned>(codes + 256 + 64 * (G % 2) + kVecBytes * v));
  }
  template <int G>
  static inline Bytes base(Bytes index) {
    return index;
  }
  template <int G, bool Pinned>
  static inline Bytes join(Bytes base, const uint8_t* codes, int v) {
    return six_bits<G>(take<Pinned>(codes + 64 * (G % 4) + kVecBytes * v), base);
  }
  template <int G, bool Pinned>
  static inline Bytes group(const uint8_t* codes, int v) {
    return join<G, Pinned>(index<G, Pinned>(codes, v), codes, v);
  }
  static inline void scales(const uint8_t* unit, const Unit& u, int block, F32 (&s)[kScales][kPanelVecs]) {
    for (int half = 0; half < 2; ++half) {
      F32 scale[kPanelVecs];
      load_signed_rows_above(block_at(unit, block) + 16 * half, scale);
      for (int v = 0; v < kPanelVecs; ++v) {
        s[2 * half][v] = fma(scale[v], u.d[v], u.d_excess[v]);
        s[2 * half + 1][v] = s[2 * half][v] * set1(-kStartWholeValue);
      }
    }
  }
  // d * s has at most 19 bits, so start times it is exact as well.
  static inline Product product(const I32 (&sums)[2], const F32 (&s)[kScales]) {
    return {{fma_in_place(as_f32(sums[0]), s[0], s[1]), fma_in_place(as_f32(sums[1]), s[2], s[3])}};
  }
  template <int Lane>
  static inline F32 add(const Product& product, const F32 (&)[kScales], Scalars a, Scalars, F32 result) {
    return fma_lane<Lane>(product.of_half[1], a, fma_lane<Lane>(product.of_half[0], a, result));
  }
  static inline float value(const uint8_t* unit, int k, int row) {
    const uint8_t* block = block_at(unit, k / 32);
    const float scale = static_cast<float>(static_cast<int8_t>(block[k % 32 / 16 * 16 + row]));
    return half_at(unit, row) * scale * static_cast<float>(code_6bit(block + 32, k % 32, row) - 32);
  }
};

}  // namespace qeff::QEFF_ISA
