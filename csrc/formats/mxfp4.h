// OCP MXFP4: elements E2M1, a power of two for 32 of them. formats/codes.h says what the members are.
#pragma once

#include "formats/codes.h"

namespace qeff::QEFF_ISA {

struct MXFP4 {
  static constexpr WeightFormat kFormat = WeightFormat::kMXFP4;
  static constexpr int kUnitBlocks = 1, kSums = 1, kScales = 1;
  static constexpr int32_t kOffset = 12;
  static constexpr int32_t kStart = 0x4AC00000;  // 1.5 * 2^22: units of a half, as elements are doubled
  static constexpr float kStartValue = 6291456.0f;
  static constexpr int kSteps = 2;
  static constexpr bool kWide = false;
  // Elements times 2 plus the offset.
  static constexpr uint8_t kElements[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
  struct Unit {};

  static inline Unit open(const uint8_t*) { return {}; }
  static inline const uint8_t* codes(const uint8_t* unit, int) { return unit + 16; }
  template <int G, bool Pinned>
  static inline Bytes index(const uint8_t* codes, int v) {
    return group_4bit<G, Pinned>(codes, v);
  }
  template <int G>
  static inline Bytes base(Bytes index) {
    return lookup(load_table16(kElements), index);
  }
  template <int G, bool Pinned>
  static inline Bytes join(Bytes base, const uint8_t*, int) {
    return base;
  }
  template <int G, bool Pinned>
  static inline Bytes group(const uint8_t* codes, int v) {
    return base<G>(index<G, Pinned>(codes, v));
  }
  static inline void scales(const uint8_t* unit, const Unit&, int, F32 (&s)[kScales][kPanelVecs]) {
    load_scales_e8m0(unit, s[0]);
  }
  static inline F32 product(const I32 (&sums)[1], const F32 (&s)[kScales]) {
    return (as_f32(sums[0]) - set1(kStartValue)) * s[0];
  }
  template <int Lane>
  static inline F32 add(F32 product, const F32 (&)[kScales], Scalars a, Scalars, F32 result) {
    return fma_lane<Lane>(product, a, result);
  }
  static inline float value(const uint8_t* unit, int k, int row) {
    const int twice = kElements[code_4bit(unit + 16, k, row)] - kOffset;
    return e8m0_value(unit[row]) * (static_cast<float>(twice) * 0.5f);
  }
};

}  // namespace qeff::QEFF_ISA
