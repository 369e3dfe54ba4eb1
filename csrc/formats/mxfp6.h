// OCP MXFP6 with elements E2M3, a power of two for 32 of them. formats/codes.h says what the members are.
#pragma once

#include "formats/codes.h"

namespace qeff::QEFF_ISA {

// Bases of whole codes plus the offset, by the low five bits of a byte. Bits 3 and 4, which come along when the
// steps above them are added, are subtracted beforehand.
struct WholeBases {
  uint8_t v[32];
  constexpr WholeBases() : v{} {
    constexpr int kBases[8] = {0, 32, 64, 96, 34, 66, 49, 51};
    for (int i = 0; i < 32; ++i) v[i] = static_cast<uint8_t>(kBases[i / 16 * 4 + i % 4] - i / 8);
  }
};

struct MXFP6 {
  static constexpr WeightFormat kFormat = WeightFormat::kMXFP6;
  static constexpr int kUnitBlocks = 1, kSums = 1, kScales = 1;
  static constexpr int32_t kOffset = 64;
  static constexpr int32_t kStart = 0x49C00000;  // 1.5 * 2^20: units of an eighth, as elements are taken 8 times
  static constexpr float kStartValue = 1572864.0f;
  static constexpr int kSteps = 4;
  static constexpr bool kWide = false;
  // Bases of split codes as docs/panels.md has them, plus the offset: bits 2 and 3 are free for the steps.
  static constexpr uint8_t kSplitBases[16] = {64, 65, 66, 67, 80, 82, 96, 112, 0, 16, 32, 34, 48, 49, 50, 51};
  static constexpr WholeBases kWholeBases{};
  struct Unit {};

  static inline Unit open(const uint8_t*) { return {}; }
  static inline const uint8_t* codes(const uint8_t* unit, int) { return unit + 16; }
  // Which 64 bytes hold group g: one group of whole codes, or two of split codes.
  static constexpr int plane(int g) { return g % 2 * 3 + (g % 4 < 2 ? g / 4 : 2); }
  template <bool Pinned>
  static inline Bytes bytes_of(const uint8_t* codes, int g, int v) {
    return take<Pinned>(codes + 64 * plane(g) + kVecBytes * v);
  }
  template <int G, bool Pinned>
  static inline Bytes index(const uint8_t* codes, int v) {
    const Bytes bytes = bytes_of<Pinned>(codes, G, v);
    return G % 4 < 2 ? low_five(bytes) : G < 4 ? low_nibbles(bytes) : high_nibbles(bytes);
  }
  template <int G>
  static inline Bytes base(Bytes index) {
    return G % 4 < 2 ? lookup(load_table32(kWholeBases.v), index) : lookup(load_table16(kSplitBases), index);
  }
  template <int G, bool Pinned>
  static inline Bytes join(Bytes base, const uint8_t* codes, int v) {
    if constexpr (G % 4 < 2) return add_high<3>(base, bytes_of<Pinned>(codes, G, v));
    return insert_two_bits<1, 2>(base, bytes_of<Pinned>(codes, G - 2, v));
  }
  template <int G, bool Pinned>
  static inline Bytes group(const uint8_t* codes, int v) {
    return join<G, Pinned>(base<G>(index<G, Pinned>(codes, v)), codes, v);
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
    const int g = k / 4;
    const auto byte_of = [&](int group) -> int { return unit[16 + 64 * plane(group) + 4 * row + k % 4]; };
    const int byte = byte_of(g);
    int eightfold = -kOffset;
    if (g % 4 < 2) {
      eightfold += static_cast<uint8_t>(kWholeBases.v[byte % 32] + byte / 8);
    } else {
      eightfold += kSplitBases[g < 4 ? byte % 16 : byte / 16] + (byte_of(g - 2) & 12);
    }
    return e8m0_value(unit[row]) * (static_cast<float>(eightfold) * 0.125f);
  }
};

}  // namespace qeff::QEFF_ISA
