// Sizes of the weight formats of docs/panels.md: the one place that knows them.
#pragma once

#include <cstdint>

#include "kernels/linear.h"

namespace qeff {

// A panel is a row of units: the smallest runs of columns that are stored together.
struct UnitLayout {
  int cols;
  int bytes;             // of 16 rows
  bool whole_units_only;  // whether cols of a matrix must be a multiple; else the last unit is padded
};

constexpr UnitLayout unit_layout(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32: return {1, 64, true};
    case WeightFormat::kF16: return {1, 32, true};
    case WeightFormat::kBF16: return {1, 32, true};
    case WeightFormat::kQ8_0: return {32, 544, false};
    case WeightFormat::kQ4_0: return {32, 288, false};
    case WeightFormat::kQ4_1: return {32, 320, false};
    case WeightFormat::kQ4_K: return {256, 2368, true};
    case WeightFormat::kQ6_K: return {256, 3360, true};
    case WeightFormat::kMXFP4: return {32, 272, false};
    case WeightFormat::kMXFP6: return {32, 400, false};
    case WeightFormat::kMXFP8: return {32, 528, false};
  }
  return {0, 0, true};
}

}  // namespace qeff
