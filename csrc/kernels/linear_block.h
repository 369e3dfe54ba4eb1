// What the kernels of the block formats share: tokens as they read them. Included by those kernels alone.
#pragma once

#include "formats/codes.h"
#include "kernels/linear_tile.h"

namespace qeff::QEFF_ISA {

// Up to this many tokens are multiplied while weights stream by.
inline constexpr int kStreamTokens = kHasStrips ? 2 : kTileTokens / 2;

// Whether a format adds a multiple of the sum of activations.
template <class F>
inline constexpr bool kTakesSum = F::kSums == 1 && F::kScales == 3;

// What the kernels read of NT tokens in one block. Tokens that are multiplied together lie together, block by block, so
// that activations are one stream of bytes. HasOffset: whether the weights they are multiplied with have kOffset added.
template <class F, int NT, bool HasOffset = true>
struct alignas(16) BlockOfTokens {
  static constexpr int kTokens = NT, kFloats = (NT + 3) / 4 * 4;
  static constexpr bool kHasOffset = true;
  int8_t q[NT][32];
  float scale[kFloats];
  float scale_sum[kFloats];                  // the scale times the sum of q
  int32_t start[F::kSums][NT][kStartLanes];  // what integer sums begin with

  inline const int32_t* start_of(int j, int t) const { return start[j][t]; }
};
// Without an offset, sums begin with the same number whatever the token, and little else is left to read.
template <class F, int NT>
struct alignas(16) BlockOfTokens<F, NT, false> {
  static constexpr int kTokens = NT, kFloats = (NT + 3) / 4 * 4;
  static constexpr bool kHasOffset = false;
  alignas(16) static constexpr int32_t kStart[4] = {F::kStart, F::kStart, F::kStart, F::kStart};
  static_assert(kStartLanes <= 4);
  int8_t q[NT][32];
  float scales[kTakesSum<F> ? 2 : 1][kFloats];

  inline const int32_t* start_of(int, int) const { return kStart; }
};
// The scales of a block's tokens; what those are times the sums, for formats that take it.
template <class Block>
static inline auto* scales_of(Block& block) {
  if constexpr (Block::kHasOffset) {
    return block.scale;
  } else {
    return block.scales[0];
  }
}
template <class F, class Block>
static inline auto* scale_sums_of(Block& block) {
  if constexpr (Block::kHasOffset) {
    return block.scale_sum;
  } else {
    return block.scales[kTakesSum<F> ? 1 : 0];
  }
}

// What F::product() gives.
template <class F>
using ProductOf = decltype(F::product(*static_cast<const I32(*)[F::kSums]>(nullptr),
                                      *static_cast<const F32(*)[F::kScales]>(nullptr)));

// A dot product in the order of the source.
template <class F, int Group>
static inline I32 dot_in_order(I32 sum, Bytes w, Quads x) {
  if constexpr (F::kWide) {
    return dot_wide_pinned<Group>(sum, w, x);
  } else {
    return dot_pinned<Group>(sum, w, x);
  }
}

}  // namespace qeff::QEFF_ISA
