// Weights of 4 bits in units of 256 columns: half-precision scale and minimum for a unit, each multiplied by a
// whole number for every 32 columns. formats/codes.h says what the members are.
#pragma once

#include "formats/codes.h"

namespace qeff::QEFF_ISA {

struct Q4_K {
  static constexpr WeightFormat kFormat = WeightFormat::kQ4_K;
  static constexpr int kUnitBlocks = 8, kSums = 1, kScales = 3;
  static constexpr int32_t kOffset = 0, kStart = kStartWhole;
  static constexpr int kSteps = 1;
  static constexpr bool kWide = false;
  static constexpr int kBlockBytes = 288, kHeadBytes = 64;
  struct Unit {
    // d, -dmin, and both times what load_rows_above() has too much, negated.
    F32 d[kPanelVecs], d_excess[kPanelVecs], minus_dmin[kPanelVecs], dmin_excess[kPanelVecs];
  };

  static inline Unit open(const uint8_t* unit) {
    Unit u;
    for (int v = 0; v < kPanelVecs; ++v) {
      u.d[v] = load_f16(halves(unit) + kLanes * v);
      u.d_excess[v] = u.d[v] * set1(-0x1p15f);
      u.minus_dmin[v] = load_f16(halves(unit + 32) + kLanes * v) * set1(-1.0f);
      u.dmin_excess[v] = u.minus_dmin[v] * set1(-0x1p15f);
    }
    return u;
  }
  static inline const uint8_t* block_at(const uint8_t* unit, int block) {
    return unit + kHeadBytes + kBlockBytes * block;
  }
  static inline const uint8_t* codes(const uint8_t* unit, int block) { return block_at(unit, block) + 32; }
  template <int G, bool Pinned>
  static inline Bytes group(const uint8_t* codes, int v) {
    return group_4bit<G, Pinned>(codes, v);
  }
  static inline void scales(const uint8_t* unit, const Unit& u, int block, F32 (&s)[kScales][kPanelVecs]) {
    F32 scale[kPanelVecs], least[kPanelVecs];
    load_rows_above(block_at(unit, block), scale);
    load_rows_above(block_at(unit, block) + 16, least);
    for (int v = 0; v < kPanelVecs; ++v) {
      s[0][v] = fma(scale[v], u.d[v], u.d_excess[v]);
      s[1][v] = s[0][v] * set1(-kStartWholeValue);
      s[2][v] = fma(least[v], u.minus_dmin[v], u.dmin_excess[v]);
    }
  }
  // d * s has at most 19 bits, so start times it is exact as well.
  static inline F32 product(const I32 (&sums)[1], const F32 (&s)[kScales]) { return product_f16(sums[0], s); }
  template <int Lane>
  static inline F32 add(F32 product, const F32 (&s)[kScales], Scalars a, Scalars a_sum, F32 result) {
    return fma_lane<Lane>(s[2], a_sum, fma_lane<Lane>(product, a, result));
  }
  static inline float value(const uint8_t* unit, int k, int row) {
    const uint8_t* block = block_at(unit, k / 32);
    const float code = static_cast<float>(code_4bit(block + 32, k % 32, row));
    return half_at(unit, row) * static_cast<float>(block[row]) * code -
           half_at(unit + 32, row) * static_cast<float>(block[16 + row]);
  }
};

}  // namespace qeff::QEFF_ISA
