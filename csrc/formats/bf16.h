// Weights in bfloat16. formats/columns.h says what the members are.
#pragma once

#include "formats/columns.h"

namespace qeff::QEFF_ISA {

struct FloatBF16 {
  static constexpr WeightFormat kFormat = WeightFormat::kBF16;
  static constexpr int kRunBytes = kBytesOfRun<kFormat>;
  struct Run {};

  static inline Run open(const uint8_t*) { return {}; }
  static inline void column(const uint8_t* run, const Run&, int k, F32 (&w)[kPanelVecs]) {
    for (int v = 0; v < kPanelVecs; ++v) w[v] = load_bf16(reinterpret_cast<const uint16_t*>(run) + 16 * k + kLanes * v);
  }
  static inline float value(const uint8_t* run, int k, int row) {
    uint16_t bits;
    std::memcpy(&bits, run + 32 * k + 2 * row, 2);
    return bfloat_to_float(bits);
  }
};

}  // namespace qeff::QEFF_ISA
