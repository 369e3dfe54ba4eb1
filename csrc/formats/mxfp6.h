// OCP MXFP6 with elements E2M3, a power of two for 32 of them. formats/codes.h says what the members are.
#pragma once

#include "formats/codes.h"

namespace qeff::QEFF_ISA {

struct MXFP6 {
  static constexpr WeightFormat kFormat = WeightFormat::kMXFP6;
  static constexpr int kUnitBlocks = 1, kSums = 1, kScales = 1;
  static constexpr int32_t kOffset = 64;
  static constexpr int32_t kStart = 0x49C00000;  // 1.5 * 2^20: units of an eighth, as elements are taken 8 times
  static constexpr float kStartValue = 1572864.0f;
  static constexpr int kSteps = 4;
  static constexpr bool kWide = false;
  // The bases of docs/panels.md plus the offset: bits 2 and 3 are free for the high two bits of a code.
  static constexpr uint8_t kBases[16] = {64, 65, 66, 67, 80, 82, 96, 112, 0, 16, 32, 34, 48, 49, 50, 51};
  struct Unit {};

  static inline Unit open(const uint8_t*) { return {}; }
  static inline const uint8_t* codes(const uint8_t* unit, int) { return unit + 16; }
  template <int G, bool Pinned>
  static inline Bytes group(const uint8_t* codes, int v) {
    const Bytes base = lookup(load_table16(kBases), group_4bit<G, Pinned>(codes, v));
    return with_high_bits<G, Pinned, 2>(base, codes, v);
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
    const int code = code_6bit(unit + 16, k, row);
    const int eightfold = kBases[code & 15] + 4 * (code >> 4) - kOffset;
    return e8m0_value(unit[row]) * (static_cast<float>(eightfold) * 0.125f);
  }
};

}  // namespace qeff::QEFF_ISA
