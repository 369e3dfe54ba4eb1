// Products of the block formats with activations that are rounded to int8.
//
// One token, or few: weights are unpacked in registers while they stream by. Many tokens: a stretch of a panel is
// unpacked into scratch once, in the layout of 8-bit codes with its scales as floats behind each block, and tiles of rows
// and tokens run over it. Both add the same numbers in the same order. Included by linear.cc alone.
#pragma once

#include "formats/codes.h"
#include "kernels/linear_tile.h"

namespace qeff::QEFF_ISA {

// Up to this many tokens are multiplied while weights stream by.
inline constexpr int kStreamTokens = kTileTokens / 2;

// What the kernels read of one token in one block. Tokens that are multiplied together lie block by block, so that
// activations are one stream of bytes.
template <class F>
struct alignas(16) BlockOfToken {
  int8_t q[32];
  int32_t start[F::kSums * kStartLanes];  // what integer sums begin with
  float scale[4];                         // the scale, the scale times the sum of q, and two that fill up
};

template <class F, int Group>
static inline I32 dot_for(I32 sum, Bytes w, Quads x) {
  if constexpr (F::kWide) {
    return dot_wide<Group>(sum, w, x);
  } else {
    return dot<Group>(sum, w, x);
  }
}

// The same in the order of the source.
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

// Adds what a block gives to the results of NT tokens and NV row vectors. block: the first of these vectors in scratch;
// weights and scales of a row vector have the same size there.
template <class F, int NV, int NT>
[[gnu::always_inline]] static inline void add_blocks(const uint8_t* block, const I32 (&sums)[NT * NV][F::kSums],
                                                     const BlockOfToken<F>* tokens, F32 (&result)[NT * NV]) {
  const float* scales = reinterpret_cast<const float*>(block + 512);
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
    const Scalars a = load_scalars(tokens[t].scale);
    unrolled<NV>([&](auto v) QEFF_INLINE_BODY {
      F32 s[F::kScales];
      unrolled<F::kScales>([&](auto j) QEFF_INLINE_BODY { s[j] = load(scales + 16 * j + kLanes * v); });
      result[NV * t + v] = F::add(product[NV * t + v], s, a, result[NV * t + v]);
    });
  });
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
        unrolled<kPanelVecs>([&](auto v) QEFF_INLINE_BODY { store_bytes(scratch + 64 * (g + 4) + kVecBytes * v, high[v]); });
      });
      F32 scales[F::kScales][kPanelVecs];
      F::scales(units, unit, i, scales);
      for (int j = 0; j < F::kScales; ++j) {
        for (int v = 0; v < kPanelVecs; ++v) store(reinterpret_cast<float*>(scratch + 512) + 16 * j + kLanes * v, scales[j][v]);
      }
    }
  }
}

// One or two tokens: all rows of a panel while it streams by.
template <class F, int NT>
[[gnu::noinline]] static void stream(const uint8_t* units, int64_t num_blocks, const BlockOfToken<F>* tokens, const Edge& edge,
                                     float* const* y) {
  constexpr int kUnitBytes = unit_layout(F::kFormat).bytes;
  F32 result[NT][kPanelVecs];
  unrolled<NT>([&](auto t) QEFF_INLINE_BODY {
    unrolled<kPanelVecs>([&](auto v) QEFF_INLINE_BODY { result[t][v] = edge.begin(y[t], v); });
  });
  for (int64_t b = 0; b < num_blocks; b += F::kUnitBlocks, units += kUnitBytes) {
    const typename F::Unit unit = F::open(units);
    for (int i = 0; i < F::kUnitBlocks; ++i) {
      const uint8_t* codes = F::codes(units, i);
      F32 scales[F::kScales][kPanelVecs];
      F::scales(units, unit, i, scales);
      unrolled<kPanelVecs>([&](auto v) QEFF_INLINE_BODY {
        Bytes w[8];
        unrolled<8>([&](auto g) QEFF_INLINE_BODY { w[g] = F::template group<g, false>(codes, v); });
        F32 s[F::kScales];
        unrolled<F::kScales>([&](auto j) QEFF_INLINE_BODY { s[j] = scales[j][v]; });
        unrolled<NT>([&](auto t) QEFF_INLINE_BODY {
          I32 sums[F::kSums];
          unrolled<F::kSums>([&](auto j) QEFF_INLINE_BODY { sums[j] = load_start(tokens[t].start + kStartLanes * j); });
          unrolled<2>([&](auto half) QEFF_INLINE_BODY {
            const Quads x = load_quads(tokens[t].q + 16 * half);
            I32& sum = sums[half * (F::kSums - 1)];
            unrolled<4>([&](auto g) QEFF_INLINE_BODY { sum = dot_for<F, g>(sum, w[4 * half + g], x); });
          });
          result[t][v] = F::add(F::product(sums, s), s, load_scalars(tokens[t].scale), result[t][v]);
        });
      });
      tokens += NT;
    }
  }
  unrolled<NT>([&](auto t) QEFF_INLINE_BODY {
    unrolled<kPanelVecs>([&](auto v) QEFF_INLINE_BODY { edge.end(result[t][v], y[t], v); });
  });
}

// Row vectors [v0, v0 + NV) of a stretch in scratch times NT tokens. On the way it asks for a line of `next` in every block.
template <class F, int NV, int NT>
[[gnu::noinline]] static void tile(const uint8_t* blocks, int64_t num_blocks, int v0, const BlockOfToken<F>* tokens, const Edge& edge,
                                   float* const* y, const uint8_t* next) {
  F32 result[NT * NV];
  unrolled<NT>([&](auto t) QEFF_INLINE_BODY {
    unrolled<NV>([&](auto v) QEFF_INLINE_BODY { result[NV * t + v] = edge.begin(y[t], v0 + v); });
  });
  blocks += kVecBytes * v0;
  for (int64_t b = 0; b < num_blocks; ++b, blocks += kScratchBlockBytes<F>) {
    __builtin_prefetch(next + 64 * b);
    I32 sums[NT * NV][F::kSums];
    unrolled<NT>([&](auto t) QEFF_INLINE_BODY {
      unrolled<NV>([&](auto v) QEFF_INLINE_BODY {
        unrolled<F::kSums>([&](auto i) QEFF_INLINE_BODY { sums[NV * t + v][i] = load_start(tokens[t].start + kStartLanes * i); });
      });
    });
    unrolled<2>([&](auto half) QEFF_INLINE_BODY {
      constexpr int kSum = half * (F::kSums - 1);
      Quads x[NT];
      unrolled<NT>([&](auto t) QEFF_INLINE_BODY { x[t] = load_quads_pinned(tokens[t].q + 16 * half); });
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
    add_blocks<F, NV, NT>(blocks, sums, tokens, result);
    tokens += NT;
  }
  unrolled<NT>([&](auto t) QEFF_INLINE_BODY {
    unrolled<NV>([&](auto v) QEFF_INLINE_BODY { edge.end(result[NV * t + v], y[t], v0 + v); });
  });
}

// All rows; next: as many lines as there are calls of tile() times blocks.
template <class F, int NT>
static inline void tile_panel(const uint8_t* blocks, int64_t num_blocks, const BlockOfToken<F>* tokens, const Edge& edge,
                              float* const* y, const uint8_t* next) {
  for (int v0 = 0; v0 < kPanelVecs; v0 += kTileVecs, next += 64 * num_blocks) {
    tile<F, kTileVecs, NT>(blocks, num_blocks, v0, tokens, edge, y, next);
  }
}

static inline int32_t sum_of(const int8_t* q, int n) {
  int32_t sum = 0;
  for (int i = 0; i < n; ++i) sum += q[i];
  return sum;
}

// Fills blocks [first, first + num_blocks) of a token; stride: tokens that lie together.
template <class F>
static inline void prepare_token(const RoundedActivations& rounded, int64_t row, int64_t first, int64_t num_blocks, BlockOfToken<F>* out,
                                 int64_t stride) {
  const int8_t* q = rounded.q + row * rounded.q_stride + 32 * first;
  const float* scale = rounded.scale + row * rounded.scale_stride + first;
  const int32_t* sum = rounded.sum + row * rounded.scale_stride + first;
  for (int64_t b = 0; b < num_blocks; ++b, q += 32, out += stride) {
    std::memcpy(out->q, q, 32);
    for (int i = 0; i < F::kSums; ++i) {
      const int32_t t = F::kSums == 1 ? sum[b] : sum_of(q + 16 * i, 16);
      for (int lane = 0; lane < kStartLanes; ++lane) out->start[kStartLanes * i + lane] = F::kStart - F::kOffset * t;
    }
    out->scale[0] = scale[b];
    out->scale[1] = scale[b] * static_cast<float>(sum[b]);
  }
}

// How many tokens a tile has from token t on; where fewer are left, the last one fills it up.
static inline int tile_len(int64_t t, int64_t num_tokens) {
  if (num_tokens == 1) return 1;
  return num_tokens - t <= kTileTokens / 2 ? kTileTokens / 2 : kTileTokens;
}

// The largest stretches: a stretch of a panel in scratch leaves room for activations in a first-level cache.
inline constexpr int64_t kTileBlocks = 48;
inline constexpr int64_t kStreamBlocks = 768;
inline constexpr int64_t kMaxTokens = 128;  // that lie in scratch at once

template <class F>
[[gnu::noinline]] static void linear_int8(const LinearArgs& args, int64_t first, int64_t last, uint8_t* scratch) {
  constexpr int64_t kBlockSize = sizeof(BlockOfToken<F>);
  constexpr int64_t kWeightBytes = kTileBlocks * kScratchBlockBytes<F>;
  constexpr int64_t kRoom = static_cast<int64_t>(kLinearScratchBytes) - kWeightBytes;
  constexpr UnitLayout kUnit = unit_layout(F::kFormat);
  static_assert(kStreamBlocks * kStreamTokens * kBlockSize <= kRoom && kTileBlocks % F::kUnitBlocks == 0);

  const int64_t num_blocks = (args.cols + 31) / 32;
  const int64_t bytes_of_panel = (args.cols + kUnit.cols - 1) / kUnit.cols * kUnit.bytes;
  const bool streams = args.num_tokens <= kStreamTokens;
  const int64_t num_stretches = max_of(1, ceil_div(num_blocks, streams ? kStreamBlocks : kTileBlocks));
  const int64_t stretch = ceil_div(ceil_div(num_blocks, num_stretches), F::kUnitBlocks) * F::kUnitBlocks;
  const int64_t room = streams ? kTileTokens : min_of(kMaxTokens, kRoom / (max_of(stretch, 1) * kBlockSize));
  const int64_t token_step = room / kTileTokens * kTileTokens;

  uint8_t* weights = scratch;
  BlockOfToken<F>* tokens = reinterpret_cast<BlockOfToken<F>*>(scratch + kWeightBytes);
  for (int64_t t0 = 0; t0 < args.num_tokens; t0 += token_step) {
    const int64_t num_tokens = min_of(token_step, args.num_tokens - t0);
    int64_t b0 = 0;
    do {  // once even where there are no columns
      const int64_t here = min_of(stretch, num_blocks - b0);
      for (int64_t t = 0; t < num_tokens; t += tile_len(t, num_tokens)) {
        const int len = tile_len(t, num_tokens);
        for (int i = 0; i < len; ++i) {
          const int64_t token = t0 + min_of(t + i, num_tokens - 1);
          const int64_t row = args.token_index != nullptr ? args.token_index[token] : token;
          prepare_token<F>(args.rounded, row, b0, here, tokens + t * here + i, len);
        }
      }
      for (int64_t p = first; p < last; ++p) {
        const uint8_t* units = args.panels + p * bytes_of_panel + b0 / F::kUnitBlocks * kUnit.bytes;
        PanelOutput output(args, p, b0 == 0, b0 + here >= num_blocks);
        if (!streams) unpack_stretch<F>(units, here, weights);
        for (int64_t t = 0, len, asked = 0; t < num_tokens; t += len, asked += 64 * here * (kPanelVecs / kTileVecs)) {
          len = tile_len(t, num_tokens);
          // What is asked for is the next panel; where that is done, scratch, which is at hand anyway.
          const bool has_next = p + 1 < last && asked < here / F::kUnitBlocks * kUnit.bytes;
          const uint8_t* next = has_next ? units + bytes_of_panel + asked : weights;
          const BlockOfToken<F>* tile_tokens = tokens + t * here;
          const int num_real = static_cast<int>(min_of(len, num_tokens - t));
          float* const* y = output.open(t0 + t, num_real, static_cast<int>(len));
          if (len == 1) {
            stream<F, 1>(units, here, tile_tokens, output.edge(), y);
          } else if (streams) {
            stream<F, kStreamTokens>(units, here, tile_tokens, output.edge(), y);
          } else if (len == kTileTokens) {
            tile_panel<F, kTileTokens>(weights, here, tile_tokens, output.edge(), y, next);
          } else {
            tile_panel<F, kTileTokens / 2>(weights, here, tile_tokens, output.edge(), y, next);
          }
          output.close(t0 + t, num_real);
        }
      }
      b0 += here;
    } while (b0 < num_blocks);
  }
}

}  // namespace qeff::QEFF_ISA
