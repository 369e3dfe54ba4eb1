// What the kernels of the block formats share: tokens as they read them. Included by those kernels alone.
#pragma once

#include "formats/codes.h"
#include "kernels/linear_tile.h"

namespace qeff::QEFF_ISA {

// Up to this many tokens are multiplied while weights stream by.
inline constexpr int kStreamTokens = kHasStrips ? 2 : kTileTokens / 2;

// What the kernels read of NT tokens in one block. Tokens that are multiplied together lie together, block by block, so
// that activations are one stream of bytes.
template <class F, int NT>
struct alignas(16) BlockOfTokens {
  static constexpr int kFloats = (NT + 3) / 4 * 4;
  int8_t q[NT][32];
  int32_t start[F::kSums][NT][kStartLanes];  // what integer sums begin with
  float scale[kFloats];
  float scale_sum[kFloats];  // the scale times the sum of q
};

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
