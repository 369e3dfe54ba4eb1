// Weights of 4 bits with a half-precision scale and minimum for 32 of them. formats/codes.h says what the members are.
#pragma once

#include "formats/codes.h"

namespace qeff::QEFF_ISA {

struct Q4_1 {
  static constexpr WeightFormat kFormat = WeightFormat::kQ4_1;
  static constexpr int kUnitBlocks = 1, kSums = 1, kScales = 3;
  static constexpr int32_t kOffset = 0, kStart = kStartWhole;
  static constexpr int kSteps = 1;
  static constexpr bool kWide = false;
  struct Unit {};

  static inline Unit open(const uint8_t*) { return {}; }
  static inline const uint8_t* codes(const uint8_t* unit, int) { return unit + 64; }
  template <int G, bool Pinned>
  static inline Bytes group(const uint8_t* codes, int v) {
    return group_4bit<G, Pinned>(codes, v);
  }
  static inline void scales(const uint8_t* unit, const Unit&, int, F32 (&s)[kScales][kPanelVecs]) {
    load_scales_f16(unit, s);
    for (int v = 0; v < kPanelVecs; ++v) s[2][v] = load_f16(halves(unit + 32) + kLanes * v);
  }
  static inline F32 product(const I32 (&sums)[1], const F32 (&s)[kScales]) { return product_f16(sums[0], s); }
  template <int Lane>
  static inline F32 add(F32 product, const F32 (&s)[kScales], Scalars a, Scalars a_sum, F32 result) {
    return fma_lane<Lane>(s[2], a_sum, fma_lane<Lane>(product, a, result));
  }
  static inline float value(const uint8_t* unit, int k, int row) {
    return half_at(unit, row) * static_cast<float>(code_4bit(unit + 64, k, row)) + half_at(unit + 32, row);
  }
};

}  // namespace qeff::QEFF_ISA
