// The most int8 products that a core can do from registers: the floor under every packed product.
#include <cstdint>

#include QEFF_SIMD_HEADER

#include "kernels/linear_tile.h"
#include "kernels/peak.h"

namespace qeff::QEFF_ISA {

static int64_t run(int64_t iterations) {
  alignas(64) uint8_t weights[64] = {1};
  alignas(64) int8_t x[64] = {1};
  I32 sums[kDotPeakChains];
  unrolled<kDotPeakChains>([&](auto i) QEFF_INLINE_BODY { sums[i] = set1_i32(0); });
  const Bytes w = load_bytes(weights);
  const Quads q = load_quads(x);
  for (int64_t i = 0; i < iterations; ++i) {
    unrolled<kDotPeakChains>([&](auto j) QEFF_INLINE_BODY {
      sums[j] = dot<0>(sums[j], w, q);
      keep(sums[j]);
    });
  }
  alignas(64) int32_t lanes[kLanes];
  int64_t total = 0;
  unrolled<kDotPeakChains>([&](auto i) QEFF_INLINE_BODY {
    store_i32(lanes, sums[i]);
    for (const int32_t lane : lanes) total += lane;
  });
  return total;
}

const PeakKernels& peak_kernels() {
  static constexpr PeakKernels kTable{run, kDotPeakChains * kLanes * 4};
  return kTable;
}

}  // namespace qeff::QEFF_ISA
