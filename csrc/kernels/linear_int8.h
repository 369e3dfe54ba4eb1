// Products of the block formats with activations that are rounded to int8.
//
// One token, or two: weights are unpacked in registers while they stream by. Many tokens: a stretch of a panel is
// unpacked into scratch once, in the layout of 8-bit codes with its scales as floats behind each block, and tiles of
// rows and tokens run over it. Where that does not pay, only the scales go to scratch and strips of rows unpack codes
// for a few tokens at a time. All add the same numbers in the same order. Included by linear.cc alone.
#pragma once

#include "formats/codes.h"
#include "kernels/linear_tile.h"

namespace qeff::QEFF_ISA {

// Up to this many tokens are multiplied while weights stream by.
inline constexpr int kStreamTokens = kHasStrips ? 2 : kTileTokens / 2;

// Lines of the next panel that are asked for in a block.
inline constexpr int kAskedLines = kHasStrips ? 2 : 1;

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

// A block in scratch: 512 bytes of weights, then kScales * 16 floats.
template <class F>
inline constexpr int kScratchBlockBytes = 512 + F::kScales * 64;

// Adds what a block gives to the results of NT tokens and NV row vectors. scales: those of the first of these vectors.
// All that takes longer than dot products stands together: on some processors every change back costs cycles.
template <class F, int NV, int NT>
[[gnu::always_inline]] static inline void add_blocks(const float* scales, const I32 (&sums)[NT * NV][F::kSums],
                                                     const BlockOfTokens<F, NT>& tokens, F32 (&result)[NT * NV]) {
  F32 product[NT * NV];
  unrolled<NV>([&](auto v) QEFF_INLINE_BODY {
    unrolled<NT>([&](auto t) QEFF_INLINE_BODY {
      F32 s[F::kScales];
      unrolled<F::kScales>([&](auto j) QEFF_INLINE_BODY {  // number 1 is what product() may overwrite
        s[j] = j == 1 ? load_pinned(scales + 16 * j + kLanes * v) : load(scales + 16 * j + kLanes * v);
      });
      product[NV * t + v] = F::product(sums[NV * t + v], s);
    });
  });
  unrolled<NT>([&](auto t) QEFF_INLINE_BODY {
    const Scalars a = load_scalars(tokens.scale + t / 4 * 4), a_sum = load_scalars(tokens.scale_sum + t / 4 * 4);
    unrolled<NV>([&](auto v) QEFF_INLINE_BODY {
      F32 s[F::kScales];
      unrolled<F::kScales>([&](auto j) QEFF_INLINE_BODY { s[j] = load(scales + 16 * j + kLanes * v); });
      result[NV * t + v] = F::template add<t % 4>(product[NV * t + v], s, a, a_sum, result[NV * t + v]);
    });
  });
}

template <class F>
[[gnu::always_inline]] static inline void store_scales(const uint8_t* unit, const typename F::Unit& opened, int i,
                                                       float* out) {
  F32 scales[F::kScales][kPanelVecs];
  F::scales(unit, opened, i, scales);
  for (int j = 0; j < F::kScales; ++j) {
    for (int v = 0; v < kPanelVecs; ++v) store(out + 16 * j + kLanes * v, scales[j][v]);
  }
}

// A stretch of a panel into scratch.
template <class F>
[[gnu::noinline]] static void unpack_stretch(const uint8_t* units, int64_t num_blocks, uint8_t* scratch) {
  constexpr int kUnitBytes = unit_layout(F::kFormat).bytes;
  for (int64_t b = 0; b < num_blocks; b += F::kUnitBlocks, units += kUnitBytes) {
    const typename F::Unit unit = F::open(units);
    for (int i = 0; i < F::kUnitBlocks; ++i, scratch += kScratchBlockBytes<F>) {
      const uint8_t* codes = F::codes(units, i);
      unrolled<4>([&](auto g) QEFF_INLINE_BODY {  // groups g and g + 4 may share their bytes
        Bytes low[kPanelVecs], high[kPanelVecs];
        unrolled<kPanelVecs>([&](auto v) QEFF_INLINE_BODY {
          low[v] = F::template group<g, false>(codes, v);
          high[v] = F::template group<g + 4, false>(codes, v);
        });
        unrolled<kPanelVecs>([&](auto v) QEFF_INLINE_BODY { store_bytes(scratch + 64 * g + kVecBytes * v, low[v]); });
        unrolled<kPanelVecs>([&](auto v)
                                 QEFF_INLINE_BODY { store_bytes(scratch + 64 * (g + 4) + kVecBytes * v, high[v]); });
      });
      store_scales<F>(units, unit, i, reinterpret_cast<float*>(scratch + 512));
    }
  }
}

// Its scales alone.
template <class F>
[[gnu::noinline]] static void unpack_scales(const uint8_t* units, int64_t num_blocks, float* scratch) {
  constexpr int kUnitBytes = unit_layout(F::kFormat).bytes;
  for (int64_t b = 0; b < num_blocks; b += F::kUnitBlocks, units += kUnitBytes) {
    const typename F::Unit unit = F::open(units);
    for (int i = 0; i < F::kUnitBlocks; ++i, scratch += 16 * F::kScales) store_scales<F>(units, unit, i, scratch);
  }
}

// Blocks [i, i + NB) of a unit, or of neighbouring units of one block, times NT tokens.
template <class F, int NT, int NB>
[[gnu::always_inline]] static inline void stream_blocks(const uint8_t* units, const typename F::Unit& unit, int i,
                                                        const BlockOfTokens<F, NT>* tokens,
                                                        F32 (&result)[NT][kPanelVecs]) {
  constexpr int kUnitBytes = unit_layout(F::kFormat).bytes;
  constexpr bool kOneUnit = F::kUnitBlocks > 1;
  I32 sums[NB][NT][kPanelVecs][F::kSums];
  F32 s[NB][F::kScales][kPanelVecs];
  unrolled<NB>([&](auto n) QEFF_INLINE_BODY {
    const uint8_t* codes = kOneUnit ? F::codes(units, i + n) : F::codes(units + n * kUnitBytes, 0);
    kOneUnit ? F::scales(units, unit, i + n, s[n]) : F::scales(units + n * kUnitBytes, unit, 0, s[n]);
    unrolled<kPanelVecs>([&](auto v) QEFF_INLINE_BODY { keep(s[n][0][v]); });
    Quads x[NT][2];
    unrolled<NT>([&](auto t) QEFF_INLINE_BODY {
      unrolled<2>([&](auto half) QEFF_INLINE_BODY { x[t][half] = load_quads_pinned(tokens[n].q[t] + 16 * half); });
      unrolled<kPanelVecs>([&](auto v) QEFF_INLINE_BODY {
        unrolled<F::kSums>([&](auto j) QEFF_INLINE_BODY { sums[n][t][v][j] = load_start(tokens[n].start[j][t]); });
      });
    });
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
  });
  F32 product[NB][NT][kPanelVecs];
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
      stream_blocks<F, NT, kStep>(units, F::open(units), 0, tokens, result);
    }
    if (kStep > 1 && b < num_blocks) stream_blocks<F, NT, 1>(units, F::open(units), 0, tokens, result);
  } else {
    static_assert(F::kUnitBlocks % kStep == 0 && kStep <= 2);
    for (int64_t b = 0; b < num_blocks; b += F::kUnitBlocks, units += kUnitBytes) {
      const typename F::Unit unit = F::open(units);
      for (int i = 0; i < F::kUnitBlocks; i += kStep, tokens += kStep)
        stream_blocks<F, NT, kStep>(units, unit, i, tokens, result);
    }
  }
  unrolled<NT>([&](auto t) QEFF_INLINE_BODY {
    unrolled<kPanelVecs>([&](auto v) QEFF_INLINE_BODY { edge.end(result[t][v], y[t], v); });
  });
}

// The sums of one row vector in a block, two tokens at a time.
template <class F, int NT>
[[gnu::always_inline]] static inline void dot_pairs(const Bytes (&w)[8], const BlockOfTokens<F, NT>& tokens,
                                                    I32 (&sums)[NT][F::kSums]) {
  unrolled<NT / 2>([&](auto pair) QEFF_INLINE_BODY {
    constexpr int t = 2 * pair, u = t + 1;
    unrolled<F::kSums>([&](auto j) QEFF_INLINE_BODY {
      sums[t][j] = load_start(tokens.start[j][t]);
      sums[u][j] = load_start(tokens.start[j][u]);
    });
    unrolled<2>([&](auto half) QEFF_INLINE_BODY {
      constexpr int kSum = half * (F::kSums - 1);
      const Quads x = load_quads_pinned(tokens.q[t] + 16 * half), z = load_quads_pinned(tokens.q[u] + 16 * half);
      dot_two_pinned<F::kWide>(sums[t][kSum], sums[u][kSum], w + 4 * half, x, z);
    });
  });
}

// Row vector v of a stretch of a panel, its scales in scratch, times NT tokens. Codes are unpacked two groups before
// their use. On the way it asks for a line of `next` in every block.
template <class F, int NT>
[[gnu::noinline]] static void strip(const uint8_t* units, int64_t num_blocks, int v, const float* scales,
                                    const BlockOfTokens<F, NT>* tokens, const Edge& edge, float* const* y,
                                    const uint8_t* next) {
  constexpr int kUnitBytes = unit_layout(F::kFormat).bytes;
  F32 result[NT];
  unrolled<NT>([&](auto t) QEFF_INLINE_BODY { result[t] = edge.begin(y[t], v); });
  scales += kLanes * v;
  for (int64_t b = 0; b < num_blocks; b += F::kUnitBlocks, units += kUnitBytes) {
    for (int i = 0; i < F::kUnitBlocks; ++i, scales += 16 * F::kScales, ++tokens, next += 64 * kAskedLines) {
      const uint8_t* codes = F::codes(units, i);
      for (int line = 0; line < kAskedLines; ++line) __builtin_prefetch(next + 64 * line, 0, 2);
      Bytes w[8];
      unrolled<4>([&](auto g) QEFF_INLINE_BODY {
        w[g] = F::template group<g, false>(codes, v);
        w[g + 4] = F::template group<g + 4, false>(codes, v);
      });
      I32 sums[NT][F::kSums];
      dot_pairs<F, NT>(w, *tokens, sums);
      add_blocks<F, 1, NT>(scales, sums, *tokens, result);
    }
  }
  unrolled<NT>([&](auto t) QEFF_INLINE_BODY { edge.end(result[t], y[t], v); });
}

// Row vectors [v0, v0 + NV) of a stretch in scratch times NT tokens. On the way it asks for a line of `next` in every
// block.
template <class F, int NV, int NT>
[[gnu::noinline]] static void tile(const uint8_t* blocks, int64_t num_blocks, int v0,
                                   const BlockOfTokens<F, NT>* tokens, const Edge& edge, float* const* y,
                                   const uint8_t* next) {
  F32 result[NT * NV];
  unrolled<NT>([&](auto t) QEFF_INLINE_BODY {
    unrolled<NV>([&](auto v) QEFF_INLINE_BODY { result[NV * t + v] = edge.begin(y[t], v0 + v); });
  });
  blocks += kVecBytes * v0;
  for (int64_t b = 0; b < num_blocks; ++b, blocks += kScratchBlockBytes<F>, ++tokens) {
    __builtin_prefetch(next + 64 * b, 0, 2);
    I32 sums[NT * NV][F::kSums];
    if constexpr (kHasStrips) {
      static_assert(NV == 1);
      Bytes w[8];
      unrolled<8>([&](auto g) QEFF_INLINE_BODY { w[g] = load_bytes(blocks + 64 * g); });
      dot_pairs<F, NT>(w, *tokens, sums);
    } else {
      unrolled<NT>([&](auto t) QEFF_INLINE_BODY {
        unrolled<NV>([&](auto v) QEFF_INLINE_BODY {
          unrolled<F::kSums>([&](auto i) QEFF_INLINE_BODY { sums[NV * t + v][i] = load_start(tokens->start[i][t]); });
        });
      });
      unrolled<2>([&](auto half) QEFF_INLINE_BODY {
        constexpr int kSum = half * (F::kSums - 1);
        Quads x[NT];
        unrolled<NT>([&](auto t) QEFF_INLINE_BODY { x[t] = load_quads_pinned(tokens->q[t] + 16 * half); });
        unrolled<NV>([&](auto v) QEFF_INLINE_BODY {
          unrolled<4>([&](auto g) QEFF_INLINE_BODY {
            const Bytes w = load_bytes_pinned(blocks + 64 * (4 * half + g) + kVecBytes * v);
            unrolled<NT>([&](auto t) QEFF_INLINE_BODY {
              I32& sum = sums[NV * t + v][kSum];
              sum = dot_in_order<F, g>(sum, w, x[t]);
            });
          });
        });
      });
    }
    add_blocks<F, NV, NT>(reinterpret_cast<const float*>(blocks + 512 - kVecBytes * v0) + kLanes * v0, sums, *tokens,
                          result);
  }
  unrolled<NT>([&](auto t) QEFF_INLINE_BODY {
    unrolled<NV>([&](auto v) QEFF_INLINE_BODY { edge.end(result[NV * t + v], y[t], v0 + v); });
  });
}

// The same for all 16 rows on a processor that multiplies whole tiles.
template <class F, int NT, class Unit>
[[gnu::noinline]] static void unit_tile(const uint8_t* blocks, int64_t num_blocks, const BlockOfTokens<F, NT>* tokens,
                                        const Edge& edge, float* const* y, const uint8_t* next) {
  F32 result[NT];
  unrolled<NT>([&](auto t) QEFF_INLINE_BODY { result[t] = edge.begin(y[t], 0); });
  constexpr int kGroups = 8 / F::kSums;
  alignas(64) int32_t sums[F::kSums][NT][16];
  Unit::template open<NT, kGroups>();
  for (int64_t b = 0; b < num_blocks; ++b, blocks += kScratchBlockBytes<F>, ++tokens) {
    __builtin_prefetch(next + 64 * b);
    for (int i = 0; i < F::kSums; ++i) {
      Unit::multiply(tokens->q[0] + 4 * kGroups * i, sizeof tokens->q[0], blocks + 64 * kGroups * i, sums[i][0]);
    }
    const float* scales = reinterpret_cast<const float*>(blocks + 512);
    F32 s[F::kScales];
    unrolled<F::kScales>([&](auto j) QEFF_INLINE_BODY { s[j] = load(scales + 16 * j); });
    unrolled<NT>([&](auto t) QEFF_INLINE_BODY {
      I32 of_token[F::kSums];
      unrolled<F::kSums>([&](auto i) QEFF_INLINE_BODY {
        of_token[i] = load_i32(sums[i][t]) + load_start(tokens->start[i][t]);
      });
      const Scalars a = load_scalars(tokens->scale + t / 4 * 4), a_sum = load_scalars(tokens->scale_sum + t / 4 * 4);
      result[t] = F::template add<t % 4>(F::product(of_token, s), s, a, a_sum, result[t]);
    });
  }
  Unit::close();
  unrolled<NT>([&](auto t) QEFF_INLINE_BODY { edge.end(result[t], y[t], 0); });
}

// All rows, from codes where they were not unpacked. next: as many lines as there are calls times blocks.
template <class F, int NT>
static inline void tile_panel(const uint8_t* units, const uint8_t* scratch, bool is_unpacked, int64_t num_blocks,
                              const BlockOfTokens<F, NT>* tokens, const Edge& edge, float* const* y,
                              const uint8_t* next) {
  if constexpr (kHasTileUnit) return unit_tile<F, NT, TileUnit>(scratch, num_blocks, tokens, edge, y, next);
  for (int v0 = 0; v0 < kPanelVecs; v0 += kTileVecs, next += 64 * kAskedLines * num_blocks) {
    if constexpr (kHasStrips) {
      static_assert(kTileVecs == 1);
      if (!is_unpacked) {
        strip<F, NT>(units, num_blocks, v0, reinterpret_cast<const float*>(scratch), tokens, edge, y, next);
        continue;
      }
    }
    tile<F, kTileVecs, NT>(scratch, num_blocks, v0, tokens, edge, y, next);
  }
}

static inline int32_t sum_of(const int8_t* q, int n) {
  int32_t sum = 0;
  for (int i = 0; i < n; ++i) sum += q[i];
  return sum;
}

// Fills blocks [first, first + num_blocks) of token t of those that lie together.
template <class F, int NT>
static inline void prepare_token(const RoundedActivations& rounded, int64_t row, int64_t first, int64_t num_blocks,
                                 BlockOfTokens<F, NT>* out, int t) {
  const int8_t* q = rounded.q + row * rounded.q_stride + 32 * first;
  const float* scale = rounded.scale + row * rounded.scale_stride + first;
  const int32_t* sum = rounded.sum + row * rounded.scale_stride + first;
  for (int64_t b = 0; b < num_blocks; ++b, q += 32, ++out) {
    std::memcpy(out->q[t], q, 32);
    for (int i = 0; i < F::kSums; ++i) {
      const int32_t of_sum = F::kSums == 1 ? sum[b] : sum_of(q + 16 * i, 16);
      for (int lane = 0; lane < kStartLanes; ++lane) out->start[i][t][lane] = F::kStart - F::kOffset * of_sum;
    }
    out->scale[t] = scale[b];
    out->scale_sum[t] = scale[b] * static_cast<float>(sum[b]);
  }
}

// How many tokens a tile has where `left` are left of num_tokens; where it has more, the last one fills it up.
static inline int tile_len(int64_t left, int64_t num_tokens) {
  if (num_tokens == 1) return 1;
  if (num_tokens <= kStreamTokens) return kStreamTokens;
  if (kHasStrips && left < kTileTokens) return static_cast<int>(left + left % 2);
  return left <= kTileTokens / 2 ? kTileTokens / 2 : kTileTokens;
}
// Calls body with a length of tile_len as a constant.
template <class Body>
[[gnu::always_inline]] static inline void with_tile_len(int len, const Body& body) {
  if (len == 1) return body(Constant<1>{});
  if (len == kTileTokens) return body(Constant<kTileTokens>{});
  if constexpr (kHasStrips) {
    if (len == 2) return body(Constant<2>{});
    if (len == 6) return body(Constant<6>{});
  }
  return body(Constant<kTileTokens / 2>{});
}

// The largest stretches: a stretch of a panel in scratch leaves room for activations in a first-level cache.
inline constexpr int64_t kTileBlocks = 48;
inline constexpr int64_t kStreamBlocks = kStreamTokens > 4 ? 384 : 768;
inline constexpr int64_t kMaxTokens = 128;  // that lie in scratch at once
// Up to this many tokens are multiplied by strips: more are worth unpacked weights where unpacking takes many steps.
template <class F>
inline constexpr int64_t kStripTokens = F::kSteps <= 1 ? INT64_MAX : 8;

template <class F>
[[gnu::noinline]] static void linear_int8(const LinearArgs& args, int64_t first, int64_t last, uint8_t* scratch) {
  // Bytes of a token in a block, whatever the length of its tile.
  constexpr int64_t kTokenBytes = max_of(sizeof(BlockOfTokens<F, 1>), sizeof(BlockOfTokens<F, 2>) / 2);
  constexpr int64_t kWeightBytes = kTileBlocks * kScratchBlockBytes<F>;
  constexpr int64_t kRoom = static_cast<int64_t>(kLinearScratchBytes) - kWeightBytes;
  constexpr UnitLayout kUnit = unit_layout(F::kFormat);
  static_assert(kStreamBlocks * kStreamTokens * kTokenBytes <= kRoom && kTileBlocks % F::kUnitBlocks == 0);

  const int64_t num_blocks = (args.cols + 31) / 32;
  const int64_t bytes_of_panel = (args.cols + kUnit.cols - 1) / kUnit.cols * kUnit.bytes;
  const bool streams = args.num_tokens <= kStreamTokens;
  const bool strips = kHasStrips && args.num_tokens <= kStripTokens<F>;
  const int64_t num_stretches = max_of(1, ceil_div(num_blocks, streams ? kStreamBlocks : kTileBlocks));
  const int64_t stretch = ceil_div(ceil_div(num_blocks, num_stretches), F::kUnitBlocks) * F::kUnitBlocks;
  const int64_t room = streams ? kTileTokens : min_of(kMaxTokens, kRoom / (max_of(stretch, 1) * kTokenBytes));
  const int64_t token_step = room / kTileTokens * kTileTokens;

  uint8_t* weights = scratch;
  uint8_t* activations = scratch + kWeightBytes;
  for (int64_t t0 = 0; t0 < args.num_tokens; t0 += token_step) {
    const int64_t num_tokens = min_of(token_step, args.num_tokens - t0);
    int64_t b0 = 0;
    do {  // once even where there are no columns
      const int64_t here = min_of(stretch, num_blocks - b0);
      for (int64_t t = 0, len; t < num_tokens; t += len) {
        len = tile_len(num_tokens - t, args.num_tokens);
        with_tile_len(static_cast<int>(len), [&](auto n) QEFF_INLINE_BODY {
          for (int i = 0; i < n; ++i) {
            const int64_t token = t0 + min_of(t + i, num_tokens - 1);
            const int64_t row = args.token_index != nullptr ? args.token_index[token] : token;
            BlockOfTokens<F, n>* out = reinterpret_cast<BlockOfTokens<F, n>*>(activations + t * here * kTokenBytes);
            prepare_token<F, n>(args.rounded, row, b0, here, out, i);
          }
        });
      }
      for (int64_t p = first; p < last; ++p) {
        const uint8_t* units = args.panels + p * bytes_of_panel + b0 / F::kUnitBlocks * kUnit.bytes;
        PanelOutput output(args, p, b0 == 0, b0 + here >= num_blocks);
        if (strips && !streams) {
          unpack_scales<F>(units, here, reinterpret_cast<float*>(weights));
        } else if (!streams) {
          unpack_stretch<F>(units, here, weights);
        }
        for (int64_t t = 0, len, asked = 0; t < num_tokens;
             t += len, asked += 64 * kAskedLines * here * (kPanelVecs / kTileVecs)) {
          len = tile_len(num_tokens - t, args.num_tokens);
          // What is asked for is the next panel; where that is done, scratch, which is at hand anyway.
          const bool has_next = p + 1 < last && asked < here / F::kUnitBlocks * kUnit.bytes;
          const uint8_t* next = has_next ? units + bytes_of_panel + asked : weights;
          const int num_real = static_cast<int>(min_of(len, num_tokens - t));
          float* const* y = output.open(t0 + t, num_real, static_cast<int>(len));
          with_tile_len(static_cast<int>(len), [&](auto n) QEFF_INLINE_BODY {
            const auto* tokens = reinterpret_cast<const BlockOfTokens<F, n>*>(activations + t * here * kTokenBytes);
            if constexpr (n <= kStreamTokens) {
              if (streams) return stream<F, n>(units, here, tokens, output.edge(), y);
            }
            if constexpr (n > 1) tile_panel<F, n>(units, weights, !strips, here, tokens, output.edge(), y, next);
          });
          output.close(t0 + t, num_real);
        }
      }
      b0 += here;
    } while (b0 < num_blocks);
  }
}

}  // namespace qeff::QEFF_ISA
