// Products of the block formats with activations that are rounded to int8: which kernel works on which blocks and
// tokens. All kernels add the same numbers in the same order. Included by linear.cc alone.
#pragma once

#include "kernels/linear_many.h"
#include "kernels/linear_stream.h"

namespace qeff::QEFF_ISA {

static inline int32_t sum_of(const int8_t* q, int n) {
  int32_t sum = 0;
  for (int i = 0; i < n; ++i) sum += q[i];
  return sum;
}

// Fills blocks [first, first + num_blocks) of token t of those that lie together.
template <class F, class Block>
static inline void prepare_token(const RoundedActivations& rounded, int64_t row, int64_t first, int64_t num_blocks,
                                 Block* out, int t) {
  const int8_t* q = rounded.q + row * rounded.q_stride + 32 * first;
  const float* scale = rounded.scale + row * rounded.scale_stride + first;
  const int32_t* sum = rounded.sum + row * rounded.scale_stride + first;
  for (int64_t b = 0; b < num_blocks; ++b, q += 32, ++out) {
    std::memcpy(out->q[t], q, 32);
    if constexpr (Block::kHasOffset) {
      for (int i = 0; i < F::kSums; ++i) {
        const int32_t of_sum = F::kSums == 1 ? sum[b] : sum_of(q + 16 * i, 16);
        for (int lane = 0; lane < kStartLanes; ++lane) out->start[i][t][lane] = F::kStart - F::kOffset * of_sum;
      }
    }
    scales_of(*out)[t] = scale[b];
    if constexpr (Block::kHasOffset || kTakesSum<F>) scale_sums_of<F>(*out)[t] = scale[b] * static_cast<float>(sum[b]);
  }
}

// Up to this many tokens are multiplied by strips: more are worth unpacked weights.
template <class F>
inline constexpr int64_t kStripTokens = F::kSteps == 0 ? 40 : F::kSteps == 1 ? 16 : 8;
// Up to this many of those by group(): from 8 on, 4-bit weights that are unpacked once for 8 tokens pay more.
template <class F>
inline constexpr int64_t kGroupTokens = !kTakesGroup<F> ? 0 : F::kSteps == 0 ? kStripTokens<F> : 7;

// How many tokens a tile has where `left` are left of num_tokens; where it has more, the last one fills it up.
template <class F, bool HasOffset>
static inline int tile_len(int64_t left, int64_t num_tokens) {
  if (num_tokens == 1) return 1;
  if (num_tokens <= kStreamTokens) return kStreamTokens;
  if (HasOffset && num_tokens <= kGroupTokens<F>) {  // 8, which pays most, where no less than 3 are left after it
    return static_cast<int>(left <= 8 ? left : left < 11 ? 6 : 8);
  }
  if (kHasStrips && left < kTileTokens) {
    return static_cast<int>(HasOffset && kTakesFew<F> && left > 1 ? left : left + left % 2);
  }
  return left <= kTileTokens / 2 ? kTileTokens / 2 : kTileTokens;
}
// Calls body with a length of tile_len as a constant.
template <class F, bool HasOffset, class Body>
[[gnu::always_inline]] static inline void with_tile_len(int len, const Body& body) {
  if constexpr (HasOffset) {
    if (len == 1) return body(Constant<1>{});
  }
  if (len == kTileTokens) return body(Constant<kTileTokens>{});
  if constexpr (kHasStrips) {
    if (len == 2) return body(Constant<2>{});
    if (len == 6) return body(Constant<6>{});
    if constexpr (HasOffset && (kTakesFew<F> || kTakesGroup<F>)) {
      if (len == 3) return body(Constant<3>{});
      if (len == 5) return body(Constant<5>{});
      if (len == 7) return body(Constant<7>{});
    }
  }
  return body(Constant<kTileTokens / 2>{});
}

// Room for what StreamUnit reads of a token in a block.
template <class F, class Unit>
static constexpr int64_t unit_block_bytes() {
  if constexpr (kTakesStreamUnit<F>) return sizeof(typename Unit::Block);
  return 0;
}

// Blocks of the largest stretch for one token or two.
inline constexpr int64_t kStreamBlocks = kStreamTokens > 4 ? 384 : 768;
inline constexpr int64_t kMaxTokens = 128;  // that lie in scratch at once
// All tokens, panels [first, last) with weights that have an offset or not.
template <class F, bool HasOffset>
[[gnu::noinline]] static void linear_int8(const LinearArgs& args, int64_t first, int64_t last, uint8_t* scratch) {
  // Bytes of a token in a block, whatever the length of its tile.
  constexpr int64_t kTokenBytes =
      max_of(HasOffset ? sizeof(BlockOfTokens<F, 1, HasOffset>) : 0, sizeof(BlockOfTokens<F, 2, HasOffset>) / 2);
  constexpr int64_t kWeightBytes = kTileBlocks * kPanelVecs * kScratchBlockBytes<F>;
  // A strip reads a little of what lies behind its tokens.
  constexpr int64_t kRoom = static_cast<int64_t>(kLinearScratchBytes) - kWeightBytes - 1024;
  constexpr UnitLayout kUnit = unit_layout(F::kFormat);
  static_assert(kStreamBlocks * kStreamTokens * kTokenBytes <= kRoom && kTileBlocks % F::kUnitBlocks == 0);
  static_assert(kStreamBlocks * (kTokenBytes + unit_block_bytes<F, StreamUnit>()) <= kRoom);

  const int64_t num_blocks = (args.cols + 31) / 32;
  const int64_t bytes_of_panel = (args.cols + kUnit.cols - 1) / kUnit.cols * kUnit.bytes;
  const bool streams = HasOffset && args.num_tokens <= kStreamTokens;
  const bool groups = HasOffset && !streams && args.num_tokens <= kGroupTokens<F>;
  const int64_t most_blocks = streams  ? kStreamBlocks
                              : groups ? kRoom / (ceil_div(args.num_tokens, kTileTokens) * kTileTokens * kTokenBytes)
                                       : kTileBlocks;
  const int64_t num_stretches = max_of(1, ceil_div(num_blocks, most_blocks));
  const int64_t stretch = ceil_div(ceil_div(num_blocks, num_stretches), F::kUnitBlocks) * F::kUnitBlocks;
  const int64_t room = streams ? kTileTokens : min_of(kMaxTokens, kRoom / (max_of(stretch, 1) * kTokenBytes));
  const int64_t num_parts = max_of(1, ceil_div(args.num_tokens, room / kTileTokens * kTileTokens));
  const int64_t token_step = max_of(1, ceil_div(ceil_div(args.num_tokens, num_parts), kTileTokens)) * kTileTokens;

  uint8_t* weights = scratch;
  uint8_t* activations = scratch + kWeightBytes;
  for (int64_t t0 = 0; t0 < args.num_tokens; t0 += token_step) {
    const int64_t num_tokens = min_of(token_step, args.num_tokens - t0);
    int64_t b0 = 0;
    do {  // once even where there are no columns
      const int64_t here = min_of(stretch, num_blocks - b0);
      const auto row_of = [&](int64_t token) QEFF_INLINE_BODY {
        return args.token_index != nullptr ? args.token_index[token] : token;
      };
      // Where StreamUnit takes the one token, it lies behind its place as others want it, which is filled if a panel
      // needs it.
      uint8_t* unit_tokens = activations + here * kTokenBytes;
      bool takes_unit = false, is_prepared = false;
      if constexpr (HasOffset && kTakesStreamUnit<F>) {
        if (args.num_tokens == 1)
          takes_unit = prepare_unit<F, StreamUnit>(args.rounded, row_of(0), b0, here, unit_tokens);
      }
      const auto prepare_tokens = [&] {
        is_prepared = true;
        for (int64_t t = 0, len; t < num_tokens; t += len) {
          len = tile_len<F, HasOffset>(num_tokens - t, args.num_tokens);
          with_tile_len<F, HasOffset>(static_cast<int>(len), [&](auto n) QEFF_INLINE_BODY {
            using Block = BlockOfTokens<F, n, HasOffset>;
            for (int i = 0; i < n; ++i) {
              Block* out = reinterpret_cast<Block*>(activations + t * here * kTokenBytes);
              prepare_token<F, Block>(args.rounded, row_of(t0 + min_of(t + i, num_tokens - 1)), b0, here, out, i);
            }
          });
        }
      };
      if (!takes_unit) prepare_tokens();
      for (int64_t p = first; p < last; ++p) {
        const uint8_t* units = args.panels + p * bytes_of_panel + b0 / F::kUnitBlocks * kUnit.bytes;
        PanelOutput output(args, p, b0 == 0, b0 + here >= num_blocks);
        bool has_products = true;
        if (!streams && !groups) {
          if constexpr (kTakesFew<F> && HasOffset) {
            unpack_heads<F, FewUnit>(units, here, weights);
            if (args.num_tokens >= 8 && F::kSums == 1) unpack_scales<F>(units, here, reinterpret_cast<float*>(weights));
          } else {
            has_products = kHasStrips && HasOffset ? unpack_scales<F>(units, here, reinterpret_cast<float*>(weights))
                                                   : unpack_stretch<F>(units, here, weights);
          }
        }
        for (int64_t t = 0, len, asked = 0; t < num_tokens; t += len) {
          len = tile_len<F, HasOffset>(num_tokens - t, args.num_tokens);
          // What is asked for is the next panel; where that is done, scratch, which is at hand anyway.
          const bool has_next = p + 1 < last && asked < here / F::kUnitBlocks * kUnit.bytes;
          const uint8_t* next = has_next ? units + bytes_of_panel + asked : weights;
          const int num_real = static_cast<int>(min_of(len, num_tokens - t));
          float* const* y = output.open(t0 + t, num_real, static_cast<int>(len));
          with_tile_len<F, HasOffset>(static_cast<int>(len), [&](auto n) QEFF_INLINE_BODY {
            using Block = BlockOfTokens<F, n, HasOffset>;
            const Block* tokens = reinterpret_cast<const Block*>(activations + t * here * kTokenBytes);
            asked += 64 * kAskedLines<F, Block> * kPanelVecs * here;
            if constexpr (HasOffset && n == 1 && kTakesStreamUnit<F>) {
              if (takes_unit && stream_unit<F, StreamUnit>(units, here, unit_tokens, output.edge(), y[0])) return;
              if (!is_prepared) prepare_tokens();
            }
            if constexpr (HasOffset && n <= kStreamTokens) {
              if (streams) return stream<F, n>(units, here, tokens, output.edge(), y);
            }
            if constexpr (HasOffset && kTakesGroup<F> && n > kStreamTokens) {
              // Tiles after the first one find all in the caches: they, and the last panels, ask for what they read.
              const auto after = [&](int64_t num) QEFF_INLINE_BODY {
                return units + (t == 0 && p + num < last ? num * bytes_of_panel : 0);
              };
              if (groups) return group_panel<F, Block>(units, here, tokens, output.edge(), y, after(1), after(2));
            }
            if constexpr (n > 1 && !(HasOffset && kTakesGroup<F> && (n % 2 == 1 || F::kSteps == 0))) {
              tile_panel<F, Block>(units, weights, has_products, here, tokens, output.edge(), y, next);
            }
          });
          output.close(t0 + t, num_real);
        }
      }
      b0 += here;
    } while (b0 < num_blocks);
  }
}
template <class F>
static void linear_int8(const LinearArgs& args, int64_t first, int64_t last, uint8_t* scratch) {
  if constexpr (kHasStrips) {
    if (args.num_tokens > kStripTokens<F>) return linear_int8<F, false>(args, first, last, scratch);
  }
  linear_int8<F, true>(args, first, last, scratch);
}

}  // namespace qeff::QEFF_ISA
