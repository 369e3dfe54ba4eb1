// Weights of 8 bits with a half-precision scale for 32 of them. formats/codes.h says what the members are.
#pragma once

#include "formats/codes.h"

namespace qeff::QEFF_ISA {

struct Q8_0 {
  static constexpr WeightFormat kFormat = WeightFormat::kQ8_0;
  static constexpr int kUnitBlocks = 1, kSums = 1, kScales = 2;
  static constexpr int32_t kOffset = kWideBias, kStart = kStartWhole;
  static constexpr int kSteps = 0;
  static constexpr bool kWide = true;
  struct Unit {};

  static inline Unit open(const uint8_t*) { return {}; }
  static inline const uint8_t* codes(const uint8_t* unit, int) { return unit + 32; }
  template <int G, bool Pinned>
  static inline Bytes group(const uint8_t* codes, int v) {
    return wide_weights(take<Pinned>(codes + 64 * G + kVecBytes * v));
  }
  static inline void scales(const uint8_t* unit, const Unit&, int, F32 (&s)[kScales][kPanelVecs]) {
    load_scales_f16(unit, s);
  }
  static inline F32 product(const I32 (&sums)[1], const F32 (&s)[kScales]) { return product_f16(sums[0], s); }
  template <int Lane>
  static inline F32 add(F32 product, const F32 (&)[kScales], Scalars a, Scalars, F32 result) {
    return fma_lane<Lane>(product, a, result);
  }
  static inline float value(const uint8_t* unit, int k, int row) {
    return half_at(unit, row) * static_cast<float>(static_cast<int8_t>(unit[32 + value_number(k, row)]));
  }
};

}  // namespace qeff::QEFF_ISA
