// Products of activations with packed matrices: what the executor may call.
//
// The layout and the arithmetic, down to the order of every addition, are fixed in docs/panels.md.
// All functions are pure: they read what the arguments point to, write the given output, keep
// nothing, and may run on any number of threads at once on different panels or tokens.
#pragma once

#include <cstddef>
#include <cstdint>

namespace qeff {

enum class WeightFormat : uint8_t { kF32, kF16, kBF16, kQ8_0, kQ4_0, kQ4_1, kQ4_K, kQ6_K, kMXFP4, kMXFP6, kMXFP8 };
inline constexpr int kNumWeightFormats = 11;
inline constexpr int kPanelRows = 16;
inline constexpr int kBlockLen = 32;

// Whether products with this format take activations rounded to int8.
constexpr bool takes_int8(WeightFormat f) {
  return f != WeightFormat::kF32 && f != WeightFormat::kF16 && f != WeightFormat::kBF16 && f != WeightFormat::kMXFP8;
}

// Bytes of one panel of a matrix with this many columns; -1 where the format cannot hold it.
int64_t panel_bytes(WeightFormat format, int64_t cols);
// The format of a program's dtype name; false when there is none.
bool weight_format_from_name(const char* name, WeightFormat* format);

// Rounded activations of several tokens. Row t begins at q + t * q_stride and so on.
// cols is padded with zeros to whole blocks: q_stride >= 32 * num_blocks, bytes aligned to 16.
struct RoundedActivations {
  int8_t* q;
  float* scale;      // a, one a block
  int32_t* sum;      // t = sum of q, one a block
  int64_t q_stride;  // in elements, each
  int64_t scale_stride;  // of scale and of sum
};

struct LinearArgs {
  WeightFormat format;
  const uint8_t* panels;  // the matrix's first panel
  int64_t rows, cols;
  int64_t num_tokens;
  const float* x;  // for formats that do not round
  int64_t x_stride;
  RoundedActivations rounded;  // for formats that do
  const float* bias;           // [rows] or null
  float* y;                    // row t at y + t * y_stride
  int64_t y_stride;
  // Where not null, token i of the product is row token_index[i] of x and rounded; y is not indexed.
  const int32_t* token_index;
};

struct LinearKernels {
  // Rounds tokens [first, last) of x into out.
  void (*round_activations)(const float* x, int64_t x_stride, int64_t cols, int64_t first, int64_t last,
                            const RoundedActivations& out);
  // All tokens, panels [first, last). scratch: kLinearScratchBytes, private to the thread, 64-byte aligned.
  void (*linear)(const LinearArgs& args, int64_t first, int64_t last, void* scratch);
  // Row `row` of a matrix as floats into out[cols].
  void (*unpack_row)(WeightFormat format, const uint8_t* panels, int64_t cols, int64_t row, float* out);
};

inline constexpr size_t kLinearScratchBytes = 320 * 1024;

}  // namespace qeff
