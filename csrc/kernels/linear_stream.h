// Products of the block formats with one token, or two: weights are unpacked in registers while they stream by.
// Included by linear_int8.h alone.
#pragma once

#include "kernels/linear_block.h"

namespace qeff::QEFF_ISA {

// Step Step of unpacking groups G and G + 4 of row vectors v and v + 1. Steps of several vectors in turn: the next one
// never waits for the one before.
template <class F, int Step, int G>
[[gnu::always_inline]] static inline void unpack_step(const uint8_t* codes, int v, Bytes (&w)[4]) {
  unrolled<4>([&](auto k) QEFF_INLINE_BODY {
    constexpr int g = G + k % 2 * 4;
    if constexpr (Step == 1) w[k] = F::template index<g, false>(codes, v + k / 2);
    if constexpr (Step == 2) w[k] = F::template base<g>(w[k]);
    if constexpr (Step == 3) w[k] = F::template join<g, false>(w[k], codes, v + k / 2);
    keep(w[k]);
  });
}

// Blocks [i, i + NB) of a unit, or of neighbouring units of one block, times NT tokens.
template <class F, int NT, int NB>
[[gnu::always_inline]] static inline void stream_blocks(const uint8_t* units, const typename F::Unit& unit, int i,
                                                        const BlockOfTokens<F, NT>* tokens,
                                                        F32 (&result)[NT][kPanelVecs]) {
  constexpr int kUnitBytes = unit_layout(F::kFormat).bytes;
  constexpr bool kOneUnit = F::kUnitBlocks > 1;
  constexpr bool kInSteps = F::kSteps > 1 && kPanelVecs % 2 == 0;
  I32 sums[NB][NT][kPanelVecs][F::kSums];
  F32 s[NB][F::kScales][kPanelVecs];
  unrolled<NB>([&](auto n) QEFF_INLINE_BODY {
    const uint8_t* codes = kOneUnit ? F::codes(units, i + n) : F::codes(units + n * kUnitBytes, 0);
    const auto load_scales = [&]() QEFF_INLINE_BODY {
      kOneUnit ? F::scales(units, unit, i + n, s[n]) : F::scales(units + n * kUnitBytes, unit, 0, s[n]);
      unrolled<kPanelVecs>([&](auto v) QEFF_INLINE_BODY { keep(s[n][0][v]); });
    };
    if constexpr (!kInSteps) load_scales();
    Quads x[NT][2];
    unrolled<NT>([&](auto t) QEFF_INLINE_BODY {
      unrolled<2>([&](auto half) QEFF_INLINE_BODY { x[t][half] = load_quads_pinned(tokens[n].q[t] + 16 * half); });
      unrolled<kPanelVecs>([&](auto v) QEFF_INLINE_BODY {
        unrolled<F::kSums>([&](auto j) QEFF_INLINE_BODY { sums[n][t][v][j] = load_start(tokens[n].start[j][t]); });
      });
    });
    if constexpr (kInSteps) {
      unrolled<kPanelVecs / 2>([&](auto pair) QEFF_INLINE_BODY {
        unrolled<2>([&](auto j) QEFF_INLINE_BODY {
          Bytes w[2][4];  // groups j and j + 4, then j + 2 and j + 6, of two row vectors
          unpack_step<F, 1, j>(codes, 2 * pair, w[0]);
          unpack_step<F, 2, j>(codes, 2 * pair, w[0]);
          unpack_step<F, 1, j + 2>(codes, 2 * pair, w[1]);
          unpack_step<F, 3, j>(codes, 2 * pair, w[0]);
          unpack_step<F, 2, j + 2>(codes, 2 * pair, w[1]);
          unpack_step<F, 3, j + 2>(codes, 2 * pair, w[1]);
          unrolled<2>([&](auto h) QEFF_INLINE_BODY {
            unrolled<NT>([&](auto t) QEFF_INLINE_BODY {
              unrolled<4>([&](auto k) QEFF_INLINE_BODY {
                I32& sum = sums[n][t][2 * pair + k / 2][k % 2 * (F::kSums - 1)];
                sum = dot_in_order<F, j + 2 * h>(sum, w[h][k], x[t][k % 2]);
              });
            });
          });
        });
      });
      load_scales();  // no register holds them before
    } else {
      unrolled<4>([&](auto g) QEFF_INLINE_BODY {
        unrolled<kPanelVecs>([&](auto v) QEFF_INLINE_BODY {
          const Bytes low = F::template group<g, false>(codes, v), high = F::template group<g + 4, false>(codes, v);
          unrolled<NT>([&](auto t) QEFF_INLINE_BODY {
            I32(&sum)[F::kSums] = sums[n][t][v];
            sum[0] = dot_in_order<F, g>(sum[0], low, x[t][0]);
            sum[F::kSums - 1] = dot_in_order<F, g>(sum[F::kSums - 1], high, x[t][1]);
          });
        });
      });
    }
  });
  ProductOf<F> product[NB][NT][kPanelVecs];
  const auto scales_of = [&](int n, int v, F32(&out)[F::kScales]) QEFF_INLINE_BODY {
    unrolled<F::kScales>([&](auto j) QEFF_INLINE_BODY { out[j] = s[n][j][v]; });
  };
  unrolled<NB>([&](auto n) QEFF_INLINE_BODY {
    unrolled<NT>([&](auto t) QEFF_INLINE_BODY {
      unrolled<kPanelVecs>([&](auto v) QEFF_INLINE_BODY {
        F32 of_row[F::kScales];
        scales_of(n, v, of_row);
        product[n][t][v] = F::product(sums[n][t][v], of_row);
      });
    });
  });
  unrolled<NB>([&](auto n) QEFF_INLINE_BODY {
    unrolled<NT>([&](auto t) QEFF_INLINE_BODY {
      const Scalars a = load_scalars(tokens[n].scale), a_sum = load_scalars(tokens[n].scale_sum);
      unrolled<kPanelVecs>([&](auto v) QEFF_INLINE_BODY {
        F32 of_row[F::kScales];
        scales_of(n, v, of_row);
        result[t][v] = F::template add<t>(product[n][t][v], of_row, a, a_sum, result[t][v]);
      });
    });
  });
}

// Asks for what is read kStreamAhead bytes later, Bytes of it, where there is much to do with each byte: others come no
// faster for it.
template <class F, int NT, int Bytes>
[[gnu::always_inline]] static inline void ask_ahead(const uint8_t* units) {
  constexpr bool kIsSlow = F::kSteps > 1 || (F::kSteps == 1 && (NT > 1 || F::kScales > 2));
  if constexpr (kStreamAhead > 0 && kIsSlow) {
    unrolled<(Bytes + 63) / 64>([&](auto i) QEFF_INLINE_BODY { __builtin_prefetch(units + kStreamAhead + 64 * i); });
  }
}

// One or two tokens: all rows of a panel while it streams by.
template <class F, int NT>
[[gnu::noinline]] static void stream(const uint8_t* units, int64_t num_blocks, const BlockOfTokens<F, NT>* tokens,
                                     const Edge& edge, float* const* y) {
  constexpr int kUnitBytes = unit_layout(F::kFormat).bytes;
  constexpr int kStep = NT == 1 && F::kSteps <= 1 && F::kScales <= 2 ? kStreamStep : 1;
  F32 result[NT][kPanelVecs];
  unrolled<NT>([&](auto t) QEFF_INLINE_BODY {
    unrolled<kPanelVecs>([&](auto v) QEFF_INLINE_BODY { result[t][v] = edge.begin(y[t], v); });
  });
  if constexpr (F::kUnitBlocks == 1) {
    int64_t b = 0;
    for (; b + kStep <= num_blocks; b += kStep, units += kStep * kUnitBytes, tokens += kStep) {
      ask_ahead<F, NT, kStep * kUnitBytes>(units);
      stream_blocks<F, NT, kStep>(units, F::open(units), 0, tokens, result);
    }
    if (kStep > 1 && b < num_blocks) stream_blocks<F, NT, 1>(units, F::open(units), 0, tokens, result);
  } else {
    static_assert(F::kUnitBlocks % kStep == 0 && kStep <= 2);
    for (int64_t b = 0; b < num_blocks; b += F::kUnitBlocks, units += kUnitBytes) {
      const typename F::Unit unit = F::open(units);
      for (int i = 0; i < F::kUnitBlocks; i += kStep, tokens += kStep) {
        ask_ahead<F, NT, kStep * kUnitBytes / F::kUnitBlocks>(units + i * (kUnitBytes / F::kUnitBlocks));
        stream_blocks<F, NT, kStep>(units, unit, i, tokens, result);
      }
    }
  }
  unrolled<NT>([&](auto t) QEFF_INLINE_BODY {
    unrolled<kPanelVecs>([&](auto v) QEFF_INLINE_BODY { edge.end(result[t][v], y[t], v); });
  });
}

// Whether StreamUnit takes panels of a format.
template <class F>
inline constexpr bool kTakesStreamUnit = kHasStreamUnit && F::kFormat == WeightFormat::kMXFP6;

// Blocks [first, first + num_blocks) of one token as Unit wants them. False where it does not take their scales.
template <class F, class Unit>
static inline bool prepare_unit(const RoundedActivations& rounded, int64_t row, int64_t first, int64_t num_blocks,
                                uint8_t* unit_tokens) {
  auto* out = reinterpret_cast<typename Unit::Block*>(unit_tokens);
  const int8_t* q = rounded.q + row * rounded.q_stride + 32 * first;
  const float* scale = rounded.scale + row * rounded.scale_stride + first;
  const int32_t* sum = rounded.sum + row * rounded.scale_stride + first;
  bool is_taken = true;
  for (int64_t b = 0; b < num_blocks; ++b, q += 32) {
    is_taken &= scale[b] == 0 || Unit::is_moderate(scale[b]);
    Unit::fill(out + b, q, scale[b] == 0 ? 1.0f : scale[b], F::kStart - F::kOffset * sum[b]);
  }
  return is_taken;
}

// stream() for such a token. False, and nothing done, where Unit does not take the scales of the panel.
template <class F, class Unit>
[[gnu::noinline]] static bool stream_unit(const uint8_t* units, int64_t num_blocks, const uint8_t* unit_tokens,
                                          const Edge& edge, float* y) {
  const auto* tokens = reinterpret_cast<const typename Unit::Block*>(unit_tokens);
  constexpr float kStart = F::kStartValue;
  static constexpr typename Unit::Constants kConstants = [] {
    typename Unit::Constants constants{};
    for (int i = 0; i < 32; ++i) constants.whole[i] = F::kWholeBases.v[i];
    for (int i = 0; i < 16; ++i) constants.split[i] = F::kSplitBases[i];
    for (float& start : constants.start) start = kStart;
    for (uint8_t& factor : constants.factor) factor = 128;
    return constants;
  }();
  F32 results[kPanelVecs];
  unrolled<kPanelVecs>([&](auto v) QEFF_INLINE_BODY { results[v] = edge.begin(y, v); });
  if (!Unit::add_blocks(units, num_blocks, tokens, kConstants, results)) return false;
  unrolled<kPanelVecs>([&](auto v) QEFF_INLINE_BODY { edge.end(results[v], y, v); });
  return true;
}

}  // namespace qeff::QEFF_ISA
