#include "kernels/linear.h"

#if defined(__aarch64__) && defined(__GNUC__) && !defined(__clang__)
// Kernels fix their order where it matters; a compiler that changes it before it has chosen registers adds moves.
#pragma GCC optimize("no-schedule-insns")
#endif

#include QEFF_SIMD_HEADER

#include "formats/bf16.h"
#include "formats/f16.h"
#include "formats/f32.h"
#include "formats/mxfp4.h"
#include "formats/mxfp6.h"
#include "formats/mxfp8.h"
#include "formats/q4_0.h"
#include "formats/q4_1.h"
#include "formats/q4_k.h"
#include "formats/q6_k.h"
#include "formats/q8_0.h"
#include "kernels/linear_float.h"
#include "kernels/linear_int8.h"
#include "kernels/linear_round.h"

namespace qeff::QEFF_ISA {

const LinearKernels& linear_kernels();

namespace {

void round_activations(const float* x, int64_t x_stride, int64_t cols, int64_t first, int64_t last,
                       const RoundedActivations& out) {
  for (int64_t t = first; t < last; ++t) {
    round_row(x + t * x_stride, cols, out.q + t * out.q_stride, out.scale + t * out.scale_stride,
              out.sum + t * out.scale_stride);
  }
}

void linear(const LinearArgs& args, int64_t first, int64_t last, void* scratch) {
  uint8_t* bytes = static_cast<uint8_t*>(scratch);
  float* floats = static_cast<float*>(scratch);
  switch (args.format) {
    case WeightFormat::kF32: return linear_float<FloatF32>(args, first, last, floats);
    case WeightFormat::kF16: return linear_float<FloatF16>(args, first, last, floats);
    case WeightFormat::kBF16: return linear_float<FloatBF16>(args, first, last, floats);
    case WeightFormat::kMXFP8: return linear_float<MXFP8>(args, first, last, floats);
    case WeightFormat::kQ8_0: return linear_int8<Q8_0>(args, first, last, bytes);
    case WeightFormat::kQ4_0: return linear_int8<Q4_0>(args, first, last, bytes);
    case WeightFormat::kQ4_1: return linear_int8<Q4_1>(args, first, last, bytes);
    case WeightFormat::kQ4_K: return linear_int8<Q4_K>(args, first, last, bytes);
    case WeightFormat::kQ6_K: return linear_int8<Q6_K>(args, first, last, bytes);
    case WeightFormat::kMXFP4: return linear_int8<MXFP4>(args, first, last, bytes);
    case WeightFormat::kMXFP6: return linear_int8<MXFP6>(args, first, last, bytes);
  }
}

// UnitCols: columns that value() counts its k in.
template <class F, int UnitCols, int UnitBytes>
void unpack_row_of(const uint8_t* panels, int64_t cols, int64_t row, float* out) {
  constexpr UnitLayout kUnit = unit_layout(F::kFormat);
  const uint8_t* unit = panels + row / kPanelRows * (ceil_div(cols, kUnit.cols) * kUnit.bytes);
  const int row_in_panel = static_cast<int>(row % kPanelRows);
  for (int64_t c = 0; c < cols; c += UnitCols, unit += UnitBytes) {
    const int here = static_cast<int>(min_of(UnitCols, cols - c));
    for (int k = 0; k < here; ++k) out[c + k] = F::value(unit, k, row_in_panel);
  }
}
template <class F>
void unpack_row_int8(const uint8_t* panels, int64_t cols, int64_t row, float* out) {
  unpack_row_of<F, unit_layout(F::kFormat).cols, unit_layout(F::kFormat).bytes>(panels, cols, row, out);
}
template <class F>
void unpack_row_float(const uint8_t* panels, int64_t cols, int64_t row, float* out) {
  unpack_row_of<F, 32, F::kRunBytes>(panels, cols, row, out);
}

void unpack_row(WeightFormat format, const uint8_t* panels, int64_t cols, int64_t row, float* out) {
  switch (format) {
    case WeightFormat::kF32: return unpack_row_float<FloatF32>(panels, cols, row, out);
    case WeightFormat::kF16: return unpack_row_float<FloatF16>(panels, cols, row, out);
    case WeightFormat::kBF16: return unpack_row_float<FloatBF16>(panels, cols, row, out);
    case WeightFormat::kMXFP8: return unpack_row_float<MXFP8>(panels, cols, row, out);
    case WeightFormat::kQ8_0: return unpack_row_int8<Q8_0>(panels, cols, row, out);
    case WeightFormat::kQ4_0: return unpack_row_int8<Q4_0>(panels, cols, row, out);
    case WeightFormat::kQ4_1: return unpack_row_int8<Q4_1>(panels, cols, row, out);
    case WeightFormat::kQ4_K: return unpack_row_int8<Q4_K>(panels, cols, row, out);
    case WeightFormat::kQ6_K: return unpack_row_int8<Q6_K>(panels, cols, row, out);
    case WeightFormat::kMXFP4: return unpack_row_int8<MXFP4>(panels, cols, row, out);
    case WeightFormat::kMXFP6: return unpack_row_int8<MXFP6>(panels, cols, row, out);
  }
}

constexpr LinearKernels kKernels = {round_activations, linear, unpack_row};

}  // namespace

const LinearKernels& linear_kernels() { return kKernels; }

}  // namespace qeff::QEFF_ISA
