// The most products of int8 numbers and of floats that a core can do from registers: the floor under every kernel.
#include <cstdint>

#include QEFF_SIMD_HEADER

#include "kernels/peak.h"
#include "kernels/unrolled.h"

namespace qeff::QEFF_ISA {

static int64_t run_int8(int64_t rounds) {
  alignas(64) uint8_t weights[64] = {1};
  alignas(64) int8_t x[64] = {1};
  I32 sums[kPeakChains];
  unrolled<kPeakChains>([&](auto i) QEFF_INLINE_BODY { sums[i] = set1_i32(0); });
  const Bytes w = load_bytes(weights);
  const Quads q = load_quads(x);
  for (int64_t i = 0; i < rounds; ++i) {
    unrolled<kPeakChains>([&](auto j) QEFF_INLINE_BODY {
      sums[j] = dot<0>(sums[j], w, q);
      keep(sums[j]);
    });
  }
  alignas(64) int32_t lanes[kLanes];
  int64_t total = 0;
  unrolled<kPeakChains>([&](auto i) QEFF_INLINE_BODY {
    store_i32(lanes, sums[i]);
    for (const int32_t lane : lanes) total += lane;
  });
  return total;
}

static int64_t run_floats(int64_t rounds) {
  F32 sums[kPeakChains];
  unrolled<kPeakChains>([&](auto i) QEFF_INLINE_BODY { sums[i] = zero(); });
  F32 a = set1(0.5f), b = set1(0.25f);
  keep(a);
  keep(b);
  for (int64_t i = 0; i < rounds; ++i) {
    unrolled<kPeakChains>([&](auto j) QEFF_INLINE_BODY {
      sums[j] = fma_in_place(a, b, sums[j]);
      keep(sums[j]);
    });
  }
  float total = 0;
  unrolled<kPeakChains>([&](auto i) QEFF_INLINE_BODY { total += reduce_add(sums[i]); });
  return total > 0 ? 1 : 0;
}

const PeakKernels& peak_kernels() {
  static constexpr PeakKernels kTable{run_int8, kPeakChains * kLanes * 4, run_floats, kPeakChains * kLanes};
  return kTable;
}

}  // namespace qeff::QEFF_ISA
