// Products of the formats whose activations stay floats: acc = fma(w, x, acc) over the columns, rows in lanes.
//
// One token: weights become floats in registers while they stream by. Several: a stretch of a panel becomes floats in
// scratch once, and tiles of 16 rows and some tokens run over it. Included by linear.cc alone.
#pragma once

#include "formats/columns.h"
#include "kernels/linear_tile.h"

namespace qeff::QEFF_ISA {

template <class F>
static inline void float_vector(const uint8_t* runs, int64_t num_cols, const float* x, const Edge& edge, float* y) {
  F32 sums[kPanelVecs];
  unrolled<kPanelVecs>([&](auto v) QEFF_INLINE_BODY { sums[v] = edge.begin(y, v); });
  for (int64_t c = 0; c < num_cols; c += 32, runs += F::kRunBytes) {
    const typename F::Run run = F::open(runs);
    const int here = static_cast<int>(min_of(32, num_cols - c));
    int k = 0;
    for (; k + 4 <= here; k += 4) {
      const Scalars xs = load_scalars(x + c + k);
      F32 w[4][kPanelVecs];
      for (int i = 0; i < 4; ++i) F::column(runs, run, k + i, w[i]);
      for (int v = 0; v < kPanelVecs; ++v) sums[v] = fma_lane<0>(w[0][v], xs, sums[v]);
      for (int v = 0; v < kPanelVecs; ++v) sums[v] = fma_lane<1>(w[1][v], xs, sums[v]);
      for (int v = 0; v < kPanelVecs; ++v) sums[v] = fma_lane<2>(w[2][v], xs, sums[v]);
      for (int v = 0; v < kPanelVecs; ++v) sums[v] = fma_lane<3>(w[3][v], xs, sums[v]);
    }
    for (; k < here; ++k) {
      F32 w[kPanelVecs];
      F::column(runs, run, k, w);
      for (int v = 0; v < kPanelVecs; ++v) sums[v] = fma_scalar(w[v], x + c + k, sums[v]);
    }
  }
  unrolled<kPanelVecs>([&](auto v) QEFF_INLINE_BODY { edge.end(sums[v], y, v); });
}

template <int Lane, int NT>
[[gnu::always_inline]] static inline void float_column(const float* w, const Scalars (&xs)[NT],
                                                       F32 (&sums)[NT][kPanelVecs]) {
  unrolled<kPanelVecs>([&](auto v) QEFF_INLINE_BODY {
    const F32 column = load_pinned(w + 16 * Lane + kLanes * v);
    unrolled<NT>([&](auto t) QEFF_INLINE_BODY { sums[t][v] = fma_lane<Lane>(column, xs[t], sums[t][v]); });
  });
}

// A panel's columns as floats times NT tokens.
template <int NT>
[[gnu::noinline]] static void float_tile(const float* w, int64_t num_cols, const float* const* x, const Edge& edge,
                                         float* const* y) {
  F32 sums[NT][kPanelVecs];
  const float* row[NT];
  unrolled<NT>([&](auto t) QEFF_INLINE_BODY {
    unrolled<kPanelVecs>([&](auto v) QEFF_INLINE_BODY { sums[t][v] = edge.begin(y[t], v); });
    row[t] = x[t];
  });
  int64_t k = 0;
  for (; k + 4 <= num_cols; k += 4, w += 64) {
    Scalars xs[NT];
    unrolled<NT>([&](auto t) QEFF_INLINE_BODY { xs[t] = load_scalars(row[t] + k); });
    float_column<0, NT>(w, xs, sums);
    float_column<1, NT>(w, xs, sums);
    float_column<2, NT>(w, xs, sums);
    float_column<3, NT>(w, xs, sums);
  }
  for (; k < num_cols; ++k, w += 16) {
    unrolled<kPanelVecs>([&](auto v) QEFF_INLINE_BODY {
      unrolled<NT>([&](auto t)
                       QEFF_INLINE_BODY { sums[t][v] = fma_scalar(load(w + kLanes * v), row[t] + k, sums[t][v]); });
    });
  }
  unrolled<NT>([&](auto t) QEFF_INLINE_BODY {
    unrolled<kPanelVecs>([&](auto v) QEFF_INLINE_BODY { edge.end(sums[t][v], y[t], v); });
  });
}

template <int NT = kFloatTileTokens>
static inline void float_tiles(int num_tokens, const float* w, int64_t num_cols, const float* const* x,
                               const Edge& edge, float* const* y) {
  if constexpr (NT > 1) {
    if (num_tokens < NT) return float_tiles<NT - 1>(num_tokens, w, num_cols, x, edge, y);
  }
  float_tile<NT>(w, num_cols, x, edge, y);
}

template <class F>
static inline void unpack_columns(const uint8_t* runs, int64_t num_cols, float* out) {
  for (int64_t c = 0; c < num_cols; c += 32, runs += F::kRunBytes) {
    const typename F::Run run = F::open(runs);
    const int here = static_cast<int>(min_of(32, num_cols - c));
    for (int k = 0; k < here; ++k, out += 16) {
      F32 w[kPanelVecs];
      F::column(runs, run, k, w);
      for (int v = 0; v < kPanelVecs; ++v) store(out + kLanes * v, w[v]);
    }
  }
}

inline constexpr int64_t kFloatColumns = 512;  // of a stretch in scratch: half of a first-level cache

template <class F>
static inline void linear_float(const LinearArgs& args, int64_t first, int64_t last, float* scratch) {
  static_assert(kFloatColumns * 64 <= kLinearScratchBytes && kFloatColumns % 32 == 0);
  constexpr UnitLayout kUnit = unit_layout(F::kFormat);
  const int64_t bytes_of_panel = ceil_div(args.cols, kUnit.cols) * kUnit.bytes;
  const auto row_of = [&args](int64_t t) {
    return args.x + (args.token_index != nullptr ? args.token_index[t] : t) * args.x_stride;
  };
  for (int64_t p = first; p < last; ++p) {
    const uint8_t* panel = args.panels + p * bytes_of_panel;
    if (args.num_tokens == 1) {
      PanelOutput output(args, p, true, true);
      float_vector<F>(panel, args.cols, row_of(0), output.edge(), output.open(0, 1, 1)[0]);
      output.close(0, 1);
      continue;
    }
    int64_t c = 0;
    do {  // once even where there are no columns
      const int64_t here = min_of(kFloatColumns, args.cols - c);
      unpack_columns<F>(panel + c / 32 * F::kRunBytes, here, scratch);
      PanelOutput output(args, p, c == 0, c + here >= args.cols);
      for (int64_t t = 0; t < args.num_tokens; t += kFloatTileTokens) {
        const int nt = static_cast<int>(min_of(kFloatTileTokens, args.num_tokens - t));
        const float* x[kFloatTileTokens];
        for (int i = 0; i < nt; ++i) x[i] = row_of(t + i) + c;
        float_tiles(nt, scratch, here, x, output.edge(), output.open(t, nt, nt));
        output.close(t, nt);
      }
      c += here;
    } while (c < args.cols);
  }
}

}  // namespace qeff::QEFF_ISA
