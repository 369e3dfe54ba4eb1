// The most int8 products that a core can do from registers: the floor under every packed product.
#include <cstdint>

#include QEFF_SIMD_HEADER

#include "kernels/peak.h"

namespace qeff::QEFF_ISA {

static int64_t run(int64_t iterations) {
  alignas(64) uint8_t weights[64] = {1};
  alignas(64) int8_t x[64] = {1};
  I32 sums[kDotPeakChains];
  for (I32& sum : sums) sum = set1_i32(0);
  const Bytes w = load_bytes(weights);
  const Quads q = load_quads(x);
  for (int64_t i = 0; i < iterations; ++i) {
    for (I32& sum : sums) {
      sum = dot<0>(sum, w, q);
      keep(sum);
    }
  }
  alignas(64) int32_t lanes[kLanes];
  int64_t total = 0;
  for (const I32& sum : sums) {
    store_i32(lanes, sum);
    for (const int32_t lane : lanes) total += lane;
  }
  return total;
}

const PeakKernels& peak_kernels() {
  static constexpr PeakKernels kTable{run, kDotPeakChains * kLanes * 4};
  return kTable;
}

}  // namespace qeff::QEFF_ISA
