// OCP MXFP8 with elements E4M3, a power of two for 32 of them. formats/columns.h says what the members are.
#pragma once

#include "formats/codes.h"
#include "formats/columns.h"

namespace qeff::QEFF_ISA {

struct MXFP8 {
  static constexpr WeightFormat kFormat = WeightFormat::kMXFP8;
  static constexpr int kRunBytes = kBytesOfRun<kFormat>;
  struct Run {
    F32 scale[kPanelVecs];
    F32 factor[kPanelVecs];  // scale times 2^120
    bool is_plain;           // factor is finite and no element is NaN
  };

  static inline Run open(const uint8_t* run) {
    Run r;
    load_scales_e8m0(run, r.scale);
    for (int v = 0; v < kPanelVecs; ++v) r.factor[v] = r.scale[v] * set1(0x1p120f);
    uint8_t largest_scale = 0, largest = 0;  // of elements without their signs, times 2
    for (int i = 0; i < 16; ++i) largest_scale = run[i] > largest_scale ? run[i] : largest_scale;
    for (int i = 16; i < kRunBytes; ++i) {
      const uint8_t twice = static_cast<uint8_t>(run[i] << 1);
      largest = twice > largest ? twice : largest;
    }
    r.is_plain = largest_scale <= 134 && largest < 0xFE;
    return r;
  }
  // Exponent and mantissa lie where a float has them, so what is missing is 2^120 between the two
  // biases; that holds for subnormal elements as well. 480 is where the code of NaN ends up.
  static inline void column(const uint8_t* run, const Run& r, int k, F32 (&w)[kPanelVecs]) {
    I32 codes[kPanelVecs];
    load_rows_i8(run + 16 + 16 * k, codes);
    for (int v = 0; v < kPanelVecs; ++v) {
      const F32 bits = as_f32(shift_left<20>(codes[v]) & set1_i32(static_cast<int32_t>(0x87F00000u)));
      if (r.is_plain) {
        w[v] = bits * r.factor[v];
      } else {
        const F32 element = bits * set1(0x1p120f);
        w[v] = select_positive(abs(element) - set1(448.0f), set1(__builtin_nanf("")), element) * r.scale[v];
      }
    }
  }
  static inline float value(const uint8_t* run, int k, int row) {
    const uint32_t code = run[16 + 16 * k + row];
    if ((code & 0x7F) == 0x7F) return __builtin_nanf("");
    const uint32_t bits = (code & 0x7F) << 20 | (code & 0x80) << 24;
    float element;
    std::memcpy(&element, &bits, 4);
    return element * 0x1p120f * e8m0_value(run[row]);
  }
};

}  // namespace qeff::QEFF_ISA
