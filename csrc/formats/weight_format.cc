// Names and panel sizes of the weight formats, for code that is compiled once.
#include <cstring>

#include "formats/layout.h"
#include "kernels/linear.h"

namespace qeff {

int64_t panel_bytes(WeightFormat format, int64_t cols) {
  const UnitLayout unit = unit_layout(format);
  // The bound keeps every product of sizes within 64 bits.
  if (unit.cols == 0 || cols < 0 || cols > (int64_t{1} << 40)) return -1;
  if (unit.whole_units_only && cols % unit.cols != 0) return -1;
  return (cols + unit.cols - 1) / unit.cols * unit.bytes;
}

bool weight_format_from_name(const char* name, WeightFormat* format) {
  static constexpr struct {
    const char* name;
    WeightFormat format;
  } kNames[kNumWeightFormats] = {
      {"f32", WeightFormat::kF32},     {"f16", WeightFormat::kF16},     {"bf16", WeightFormat::kBF16},
      {"q8_0", WeightFormat::kQ8_0},   {"q4_0", WeightFormat::kQ4_0},   {"q4_1", WeightFormat::kQ4_1},
      {"q4_k", WeightFormat::kQ4_K},   {"q6_k", WeightFormat::kQ6_K},   {"mxfp4", WeightFormat::kMXFP4},
      {"mxfp6", WeightFormat::kMXFP6}, {"mxfp8", WeightFormat::kMXFP8},
  };
  for (const auto& entry : kNames) {
    if (std::strcmp(name, entry.name) == 0) {
      *format = entry.format;
      return true;
    }
  }
  return false;
}

}  // namespace qeff
