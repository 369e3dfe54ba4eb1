// Products of the block formats with many tokens: a stretch of a panel is unpacked into scratch once, in the layout of
// 8-bit codes with its scales as floats behind each block, and tiles of rows and tokens run over it. Where that does
// not pay, only the scales go to scratch and strips of rows unpack codes for a few tokens at a time. Included by
// linear_int8.h alone.
#pragma once

#include "kernels/linear_block.h"

namespace qeff::QEFF_ISA {

// Lines of the next panel that are asked for in a block.
inline constexpr int kAskedLines = kHasStrips ? 2 : 1;

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

}  // namespace qeff::QEFF_ISA
