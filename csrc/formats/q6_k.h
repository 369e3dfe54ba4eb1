// Weights of 6 bits in units of 256 columns: a half-precision scale for a unit, multiplied by a whole number for
// every 16 columns. formats/codes.h says what the members are.
#pragma once

#include "formats/codes.h"

namespace qeff::QEFF_ISA {

struct Q6_K {
  static constexpr WeightFormat kFormat = WeightFormat::kQ6_K;
  static constexpr int kUnitBlocks = 8, kSums = 2, kScales = 3;
  static constexpr int32_t kOffset = 32, kStart = kStartWhole;
  static constexpr int kSteps = 3;
  static constexpr bool kWide = false;
  static constexpr int kBlockBytes = 416, kHeadBytes = 32;
  struct Unit {
    F32 d[kPanelVecs];
  };

  static inline Unit open(const uint8_t* unit) {
    Unit u;
    for (int v = 0; v < kPanelVecs; ++v) u.d[v] = load_f16(halves(unit) + kLanes * v);
    return u;
  }
  static inline const uint8_t* block_at(const uint8_t* unit, int block) {
    return unit + kHeadBytes + kBlockBytes * block;
  }
  static inline const uint8_t* codes(const uint8_t* unit, int block) { return block_at(unit, block) + 32; }
  template <int G, bool Pinned>
  static inline Bytes index(const uint8_t* codes, int v) {
    return group_4bit<G, Pinned>(codes, v);
  }
  template <int G>
  static inline Bytes base(Bytes index) {
    return index;
  }
  template <int G, bool Pinned>
  static inline Bytes join(Bytes base, const uint8_t* codes, int v) {
    return with_high_bits<G, Pinned, 4>(base, codes, v);
  }
  template <int G, bool Pinned>
  static inline Bytes group(const uint8_t* codes, int v) {
    return join<G, Pinned>(index<G, Pinned>(codes, v), codes, v);
  }
  static inline void scales(const uint8_t* unit, const Unit& u, int block, F32 (&s)[kScales][kPanelVecs]) {
    I32 half[2][kPanelVecs];
    load_rows_i8(block_at(unit, block), half[0]);
    load_rows_i8(block_at(unit, block) + 16, half[1]);
    for (int v = 0; v < kPanelVecs; ++v) {
      s[0][v] = u.d[v];
      s[1][v] = to_f32(half[0][v]);
      s[2][v] = to_f32(half[1][v]);
    }
  }
  // S0 * s0 + S1 * s1 is less than 2^24, so floats hold it and every part of it exactly.
  static inline F32 product(const I32 (&sums)[2], const F32 (&s)[kScales]) {
    const F32 start = set1(kStartWholeValue);
    return fma(as_f32(sums[0]) - start, s[1], (as_f32(sums[1]) - start) * s[2]) * s[0];
  }
  template <int Lane>
  static inline F32 add(F32 product, const F32 (&)[kScales], Scalars a, Scalars, F32 result) {
    return fma_lane<Lane>(product, a, result);
  }
  static inline float value(const uint8_t* unit, int k, int row) {
    const uint8_t* block = block_at(unit, k / 32);
    const float scale = static_cast<float>(static_cast<int8_t>(block[k % 32 / 16 * 16 + row]));
    return half_at(unit, row) * scale * static_cast<float>(code_6bit(block + 32, k % 32, row) - 32);
  }
};

}  // namespace qeff::QEFF_ISA
