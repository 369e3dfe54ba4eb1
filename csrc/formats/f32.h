// Weights in single precision. formats/columns.h says what the members are.
#pragma once

#include "formats/columns.h"

namespace qeff::QEFF_ISA {

struct FloatF32 {
  static constexpr WeightFormat kFormat = WeightFormat::kF32;
  static constexpr int kRunBytes = kBytesOfRun<kFormat>;
  struct Run {};

  static inline Run open(const uint8_t*) { return {}; }
  static inline void column(const uint8_t* run, const Run&, int k, F32 (&w)[kPanelVecs]) {
    for (int v = 0; v < kPanelVecs; ++v) w[v] = load(reinterpret_cast<const float*>(run) + 16 * k + kLanes * v);
  }
  static inline float value(const uint8_t* run, int k, int row) {
    float value;
    std::memcpy(&value, run + 64 * k + 4 * row, 4);
    return value;
  }
};

}  // namespace qeff::QEFF_ISA
