// Products of the block formats with many tokens: a stretch of a panel is unpacked into scratch once, row vector by row
// vector, weights of 8 bits with their scales as floats behind each block, and tiles of one row vector and some tokens
// run over it. Where that does not pay, only the scales go to scratch and strips of rows unpack codes for a few tokens
// at a time, or not even those. Included by linear_int8.h alone.
#pragma once

#include "kernels/linear_block.h"

namespace qeff::QEFF_ISA {

// Formats whose scales are powers of two lack -start * d, with which products are one multiply-add. It is finite up to
// a limit; where a scale is larger, products are those of the format.
template <class F>
inline constexpr bool kLacksStart = kHasStrips && F::kScales == 1;
inline constexpr float kLargestWithStart = 0x1p104f;

// Whether 8 tokens are multiplied by strip() below: from scratch, or from codes that take few steps.
template <class F, bool FromCodes>
inline constexpr bool kTakesUnit = kHasStrips && F::kSums == 1 && (!FromCodes || F::kSteps <= 1);

// Lines of the next panel that a tile asks for in a block: what it needs, and not many more.
template <class F, class Block>
inline constexpr int kAskedLines =
    !kHasStrips || !Block::kHasOffset || (F::kFormat == WeightFormat::kQ4_K && Block::kTokens < 8) ? 1 : 2;

// Blocks of the largest stretch: one of a panel in scratch leaves room for activations in a first-level cache.
inline constexpr int64_t kTileBlocks = 48;

// Vectors of scales that a row vector has in a block of scratch, and bytes of such a block where weights are unpacked.
// One more than the format has where it lacks -start * d.
template <class F, bool FromCodes>
inline constexpr int kScratchScales =
    F::kScales + (kLacksStart<F> && kTakesUnit<F, FromCodes> ? 1 : 0);
template <class F>
inline constexpr int kScratchBlockBytes = (8 + kScratchScales<F, false>)*kVecBytes;

// Adds what a block gives to the results of NT tokens. All that takes longer than dot products stands together: on some
// processors every change back costs cycles.
template <class F, class Block, int NT = Block::kTokens>
[[gnu::always_inline]] static inline void add_block(const float* scales, const I32 (&sums)[NT][F::kSums],
                                                    const Block& tokens, F32 (&result)[NT]) {
  ProductOf<F> product[NT];
  unrolled<NT>([&](auto t) QEFF_INLINE_BODY {
    F32 s[F::kScales];
    unrolled<F::kScales>([&](auto j) QEFF_INLINE_BODY {  // numbers 1 and 3 are what product() may overwrite
      s[j] = j % 2 == 1 ? load_pinned(scales + kLanes * j) : load(scales + kLanes * j);
    });
    product[t] = F::product(sums[t], s);
  });
  F32 s[F::kScales];
  unrolled<F::kScales>([&](auto j) QEFF_INLINE_BODY { s[j] = load(scales + kLanes * j); });
  unrolled<NT>([&](auto t) QEFF_INLINE_BODY {
    const Scalars a = load_scalars(scales_of(tokens) + t / 4 * 4);
    const Scalars a_sum = load_scalars(scale_sums_of<F>(tokens) + t / 4 * 4);
    result[t] = F::template add<t % 4>(product[t], s, a, a_sum, result[t]);
  });
}

// Scales of a block: those of row vector v go to out + v * stride. largest: of all d so far, where it matters.
template <class F, bool FromCodes>
[[gnu::always_inline]] static inline void store_scales(const uint8_t* unit, const typename F::Unit& opened, int i,
                                                       float* out, int64_t stride, F32& largest) {
  F32 scales[F::kScales][kPanelVecs];
  F::scales(unit, opened, i, scales);
  for (int v = 0; v < kPanelVecs; ++v) {
    for (int j = 0; j < F::kScales; ++j) store(out + v * stride + kLanes * j, scales[j][v]);
    if constexpr (kLacksStart<F> && kTakesUnit<F, FromCodes>) {
      store(out + v * stride + kLanes, scales[0][v] * set1(-F::kStartValue));
      largest = max(scales[0][v], largest);
    }
  }
}

// A stretch of a panel into scratch. False where products must be those of the format.
template <class F>
[[gnu::noinline]] static bool unpack_stretch(const uint8_t* units, int64_t num_blocks, uint8_t* scratch) {
  constexpr int kUnitBytes = unit_layout(F::kFormat).bytes;
  const int64_t stride = num_blocks * kScratchBlockBytes<F>;  // from one row vector to the next
  F32 largest = zero();
  for (int64_t b = 0; b < num_blocks; b += F::kUnitBlocks, units += kUnitBytes) {
    const typename F::Unit unit = F::open(units);
    for (int i = 0; i < F::kUnitBlocks; ++i, scratch += kScratchBlockBytes<F>) {
      const uint8_t* codes = F::codes(units, i);
      unrolled<kPanelVecs>([&](auto v) QEFF_INLINE_BODY {
        Bytes w[8];
        unrolled<4>([&](auto g) QEFF_INLINE_BODY {  // groups g and g + 4 may share their bytes
          w[g] = F::template group<g, false>(codes, v);
          w[g + 4] = F::template group<g + 4, false>(codes, v);
        });
        unrolled<8>([&](auto g) QEFF_INLINE_BODY {
          if constexpr (kHasStrips && F::kOffset != 0) w[g] = minus(w[g], F::kOffset);
          store_bytes(scratch + v * stride + kVecBytes * g, w[g]);
        });
      });
      float* scales = reinterpret_cast<float*>(scratch + 8 * kVecBytes);
      store_scales<F, false>(units, unit, i, scales, stride / 4, largest);
    }
  }
  return !kLacksStart<F> || reduce_max(largest) <= kLargestWithStart;
}

// Its scales alone.
template <class F>
[[gnu::noinline]] static bool unpack_scales(const uint8_t* units, int64_t num_blocks, float* scratch) {
  constexpr int kUnitBytes = unit_layout(F::kFormat).bytes;
  const int64_t stride = num_blocks * kScratchScales<F, true> * kLanes;
  F32 largest = zero();
  for (int64_t b = 0; b < num_blocks; b += F::kUnitBlocks, units += kUnitBytes) {
    const typename F::Unit unit = F::open(units);
    for (int i = 0; i < F::kUnitBlocks; ++i, scratch += kScratchScales<F, true> * kLanes) {
      store_scales<F, true>(units, unit, i, scratch, stride, largest);
    }
  }
  return !kLacksStart<F> || reduce_max(largest) <= kLargestWithStart;
}

// Goes over the blocks of a row vector, v of a stretch of a panel: from codes, with the scales in scratch.
template <class F, bool FromCodes>
class Walk {
 public:
  Walk(const uint8_t* units, const uint8_t* scratch, int64_t num_blocks, int v)
      : units_(units), v_(v), scales_(reinterpret_cast<const float*>(scratch) + v * num_blocks * kStep) {}
  inline const float* scales() const { return scales_; }
  // Of group G; groups G and G + 4.
  template <int G>
  inline Bytes weight() const { return F::template group<G, true>(F::codes(units_, i_), v_); }
  template <int G>
  inline void weights(Bytes& low, Bytes& high) const {
    const uint8_t* codes = F::codes(units_, i_);
    low = F::template group<G, false>(codes, v_);
    high = F::template group<G + 4, false>(codes, v_);
  }
  inline void advance() {
    scales_ += kStep;
    if constexpr (F::kUnitBlocks > 1) {
      if (++i_ < F::kUnitBlocks) return;
      i_ = 0;
    }
    units_ += unit_layout(F::kFormat).bytes;
  }

 private:
  static constexpr int kStep = kScratchScales<F, true> * kLanes;
  const uint8_t* units_;
  int v_, i_ = 0;
  const float* scales_;
};
// The same where weights lie in scratch too.
template <class F>
class Walk<F, false> {
 public:
  Walk(const uint8_t*, const uint8_t* scratch, int64_t num_blocks, int v)
      : block_(scratch + v * num_blocks * kScratchBlockBytes<F>) {}
  inline const float* scales() const { return reinterpret_cast<const float*>(block_ + 8 * kVecBytes); }
  template <int G>
  inline Bytes weight() const { return load_bytes_pinned(block_ + kVecBytes * G); }
  template <int G>
  inline void weights(Bytes& low, Bytes& high) const { low = weight<G>(), high = weight<G + 4>(); }
  inline void advance() { block_ += kScratchBlockBytes<F>; }

 private:
  const uint8_t* block_;
};

// The sums of tokens T and T + 1 in a block.
template <class F, int T, class Block>
[[gnu::always_inline]] static inline void dot_pair(const Bytes (&w)[8], const Block& tokens, I32 (&x)[F::kSums],
                                                   I32 (&z)[F::kSums]) {
  unrolled<F::kSums>([&](auto j) QEFF_INLINE_BODY {
    x[j] = load_start(tokens.start_of(j, T));
    z[j] = load_start(tokens.start_of(j, T + 1));
  });
  unrolled<2>([&](auto half) QEFF_INLINE_BODY {
    constexpr int j = half * (F::kSums - 1);
    const Quads q = load_quads_pinned(tokens.q[T] + 16 * half), r = load_quads_pinned(tokens.q[T + 1] + 16 * half);
    dot_two_pinned<F::kWide>(x[j], z[j], w + 4 * half, q, r);
  });
}

// Row vector v of a stretch times a tile of tokens. On the way it asks for Lines lines of `next` in every block.
template <class F, class Block, int Lines>
[[gnu::noinline]] static void tile(const uint8_t* units, const uint8_t* scratch, int64_t num_blocks, int v,
                                   const Block* tokens, const Edge& edge, float* const* y, const uint8_t* next) {
  constexpr int NT = Block::kTokens;
  F32 result[NT];
  unrolled<NT>([&](auto t) QEFF_INLINE_BODY { result[t] = edge.begin(y[t], v); });
  Walk<F, kHasStrips && Block::kHasOffset> walk(units, scratch, num_blocks, v);
  for (int64_t b = 0; b < num_blocks; ++b, ++tokens, walk.advance()) {
    unrolled<Lines>([&](auto line) QEFF_INLINE_BODY { __builtin_prefetch(next + 64 * (Lines * b + line), 0, 2); });
    I32 sums[NT][F::kSums];
    if constexpr (kHasStrips) {
      Bytes w[8];
      unrolled<4>([&](auto g) QEFF_INLINE_BODY { walk.template weights<g>(w[g], w[g + 4]); });
      unrolled<NT / 2>([&](auto i) QEFF_INLINE_BODY {
        dot_pair<F, 2 * i>(w, *tokens, sums[2 * i], sums[2 * i + 1]);
      });
    } else {
      unrolled<NT>([&](auto t) QEFF_INLINE_BODY {
        unrolled<F::kSums>([&](auto j) QEFF_INLINE_BODY { sums[t][j] = load_start(tokens->start_of(j, t)); });
      });
      unrolled<2>([&](auto half) QEFF_INLINE_BODY {
        constexpr int kSum = half * (F::kSums - 1);
        Quads x[NT];
        unrolled<NT>([&](auto t) QEFF_INLINE_BODY { x[t] = load_quads_pinned(tokens->q[t] + 16 * half); });
        unrolled<4>([&](auto g) QEFF_INLINE_BODY {
          const Bytes w = walk.template weight<4 * half + g>();
          unrolled<NT>([&](auto t) QEFF_INLINE_BODY { sums[t][kSum] = dot_in_order<F, g>(sums[t][kSum], w, x[t]); });
        });
      });
    }
    add_block<F, Block>(walk.scales(), sums, *tokens, result);
  }
  unrolled<NT>([&](auto t) QEFF_INLINE_BODY { edge.end(result[t], y[t], v); });
}

// The same where a block has two sums, half after half: both sums of 8 tokens at once are too many for 32 registers.
template <class F, class Block, int Lines>
[[gnu::noinline]] static void tile_of_halves(const uint8_t* units, const uint8_t* scratch, int64_t num_blocks, int v,
                                             const Block* tokens, const Edge& edge, float* const* y,
                                             const uint8_t* next) {
  constexpr int NT = Block::kTokens;
  static_assert(F::kSums == 2 && F::kStart == kStartWhole);
  F32 result[NT];
  unrolled<NT>([&](auto t) QEFF_INLINE_BODY { result[t] = edge.begin(y[t], v); });
  Walk<F, Block::kHasOffset> walk(units, scratch, num_blocks, v);
  for (int64_t b = 0; b < num_blocks; ++b, ++tokens, walk.advance()) {
    unrolled<Lines>([&](auto line) QEFF_INLINE_BODY { __builtin_prefetch(next + 64 * (Lines * b + line), 0, 2); });
    const float* scales = walk.scales();
    unrolled<2>([&](auto half) QEFF_INLINE_BODY {
      Bytes w[4];
      unrolled<4>([&](auto g) QEFF_INLINE_BODY { w[g] = walk.template weight<4 * half + g>(); });
      I32 sums[NT];
      unrolled<NT / 2>([&](auto i) QEFF_INLINE_BODY {
        constexpr int t = 2 * i, u = t + 1;
        sums[t] = load_start(tokens->start_of(half, t)), sums[u] = load_start(tokens->start_of(half, u));
        const Quads q = load_quads_pinned(tokens->q[t] + 16 * half), r = load_quads_pinned(tokens->q[u] + 16 * half);
        dot_two_pinned<F::kWide>(sums[t], sums[u], w, q, r);
      });
      const F32 d = load_pinned(scales + 2 * half * kLanes);
      F32 product[NT];
      unrolled<NT>([&](auto t) QEFF_INLINE_BODY {
        product[t] = load_pinned(scales + (2 * half + 1) * kLanes);
        product[t] = fma_in_place(as_f32(sums[t]), d, product[t]);
        keep(product[t]);
      });
      unrolled<NT>([&](auto t) QEFF_INLINE_BODY {
        result[t] = fma_lane<t % 4>(product[t], load_scalars(scales_of(*tokens) + t / 4 * 4), result[t]);
        keep(result[t]);
      });
    });
  }
  unrolled<NT>([&](auto t) QEFF_INLINE_BODY { edge.end(result[t], y[t], v); });
}

// The same as tile() for 8 tokens where StripUnit can: weights of 8 bits, or codes of 4 bits that are weights.
template <class F, class Block, class Unit>
[[gnu::noinline]] static void strip(const uint8_t* units, const uint8_t* scratch, int64_t num_blocks, int v,
                                    const Block* tokens, const Edge& edge, float* const* y, const uint8_t* next) {
  constexpr int NT = Block::kTokens;
  F32 result[NT];
  unrolled<NT>([&](auto t) QEFF_INLINE_BODY { result[t] = edge.begin(y[t], v); });
  if (num_blocks > 0) {
    constexpr int kUnitBytes = unit_layout(F::kFormat).bytes, kScaleBytes = kScratchScales<F, true> * kVecBytes;
    if constexpr (Block::kHasOffset) {
      using Weights = typename Unit::Weights;
      constexpr Weights kWeights = F::kSteps == 0        ? Weights::kBytes
                                   : F::kUnitBlocks == 1 ? Weights::kNibbles
                                                         : Weights::kUnits;
      static_assert(F::kSteps <= 1 && (F::kUnitBlocks == 1 || F::kUnitBlocks == 8));
      const uint8_t* codes = F::codes(units, 0);
      const int64_t step = F::kUnitBlocks == 1 ? kUnitBytes : F::codes(units, 1) - codes;
      Unit::template add_blocks<kWeights, kTakesSum<F>, sizeof(Block), kScaleBytes>(
          codes + kVecBytes * v, step, kUnitBytes - (F::kUnitBlocks - 1) * step, num_blocks, tokens->q[0],
          tokens->start_of(0, 0), reinterpret_cast<const float*>(scratch + v * num_blocks * kScaleBytes), next, result);
    } else {
      constexpr int kStep = kScratchBlockBytes<F>;
      const uint8_t* weights = scratch + v * num_blocks * kStep;
      Unit::template add_blocks<Unit::Weights::kScratch, kTakesSum<F>, sizeof(Block), kStep>(
          weights, kStep, kStep, num_blocks, tokens->q[0], tokens->start_of(0, 0),
          reinterpret_cast<const float*>(weights + 8 * kVecBytes), next, result);
    }
  }
  unrolled<NT>([&](auto t) QEFF_INLINE_BODY { edge.end(result[t], y[t], v); });
}

// Whether a few tokens are multiplied by few() below: the K formats. Scales are made on the way there, from one head a
// unit and row vector, which lie in scratch behind the scales.
template <class F>
inline constexpr bool kTakesFew = kHasStrips && F::kUnitBlocks == 8;
template <class F>
inline constexpr int64_t kHeadsAt = kTileBlocks * kPanelVecs * kScratchScales<F, true> * kVecBytes;

// The heads of a stretch.
template <class F, class Unit>
static inline void unpack_heads(const uint8_t* units, int64_t num_blocks, uint8_t* scratch) {
  const int64_t num_units = num_blocks / F::kUnitBlocks;
  auto* heads = reinterpret_cast<typename Unit::Head*>(scratch + kHeadsAt<F>);
  for (int64_t i = 0; i < num_units; ++i, units += unit_layout(F::kFormat).bytes) {
    const typename F::Unit unit = F::open(units);
    for (int v = 0; v < kPanelVecs; ++v) {
      typename Unit::Head& head = heads[v * num_units + i];
      store(head.d, unit.d[v]);
      store(head.d_excess, unit.d_excess[v]);
      store(head.start, unit.d[v] * set1(-kStartWholeValue));
      store(head.start_excess, unit.d_excess[v] * set1(-kStartWholeValue));
      if constexpr (kTakesSum<F>) {
        store(head.least, unit.minus_dmin[v]);
        store(head.least_excess, unit.dmin_excess[v]);
      }
    }
  }
}

// The same as tile() for fewer tokens.
template <class F, class Block, class Unit>
[[gnu::noinline]] static void few(const uint8_t* units, const uint8_t* scratch, int64_t num_blocks, int v,
                                  const Block* tokens, const Edge& edge, float* const* y, const uint8_t* next) {
  using Codes = typename Unit::template CodesOf<F::kSums>;
  constexpr int NT = Block::kTokens;
  F32 result[NT];
  unrolled<NT>([&](auto t) QEFF_INLINE_BODY { result[t] = edge.begin(y[t], v); });
  if (num_blocks > 0) {
    const int64_t num_units = num_blocks / F::kUnitBlocks;
    const auto* heads = reinterpret_cast<const typename Unit::Head*>(scratch + kHeadsAt<F>);
    Unit::template add_units<Codes, NT, sizeof(Block), kAskedLines<F, Block>>(
        units, num_units, v, tokens->q[0], heads + v * num_units, next, result);
  }
  unrolled<NT>([&](auto t) QEFF_INLINE_BODY { edge.end(result[t], y[t], v); });
}

// Whether a few tokens are multiplied by group() below, which reads weights and scales as a panel has them.
template <class F>
inline constexpr bool kTakesGroup = kHasStrips && F::kUnitBlocks == 1 && F::kSums == 1 && F::kScales == 2;

// Blocks of the largest piece of a stretch that is multiplied at once: two of them and their tokens lie in a
// first-level cache.
inline constexpr int64_t kGroupBlocks = 24;

// All rows times 3 to 8 tokens, where nothing is unpacked into scratch. near, far: what is asked for, as large as
// the piece itself, into a first-level cache and into one further away.
template <class F, class Block, class Unit>
[[gnu::noinline]] static void group(const uint8_t* units, int64_t num_blocks, const Block* tokens, const Edge& edge,
                                    float* const* y, const uint8_t* near, const uint8_t* far) {
  using Codes = typename Unit::template CodesOf<F::kSteps == 0 ? 8 : 4>;
  constexpr int NT = Block::kTokens;
  static_assert(Codes::kBlockBytes == unit_layout(F::kFormat).bytes && F::kStart == kStartWhole);
  for (int v = 0; v < kPanelVecs; ++v) {
    F32 result[NT];
    unrolled<NT>([&](auto t) QEFF_INLINE_BODY { result[t] = edge.begin(y[t], v); });
    if (num_blocks > 0) {
      Unit::template add_blocks<Codes, NT, sizeof(Block)>(units, num_blocks, v, tokens->q[0], kStartWholeValue, near,
                                                          far, result);
    }
    unrolled<NT>([&](auto t) QEFF_INLINE_BODY { edge.end(result[t], y[t], v); });
  }
}

// The same for a stretch. next, after_next: the stretch of the next panel and of the one after it.
template <class F, class Block>
static inline void group_panel(const uint8_t* units, int64_t num_blocks, const Block* tokens, const Edge& edge,
                               float* const* y, const uint8_t* next, const uint8_t* after_next) {
  constexpr int kUnitBytes = unit_layout(F::kFormat).bytes;
  const int64_t num_pieces = max_of(1, ceil_div(num_blocks, kGroupBlocks)), piece = ceil_div(num_blocks, num_pieces);
  // Piece i, where those of the next panel come after the last one.
  const auto piece_at = [&](int64_t i) {
    if (i >= 2 * num_pieces) return after_next;
    return i < num_pieces ? units + i * piece * kUnitBytes : next + (i - num_pieces) * piece * kUnitBytes;
  };
  for (int64_t i = 0; i < num_pieces; ++i) {
    const Edge of_piece = {edge.is_first && i == 0, i + 1 == num_pieces ? edge.bias : nullptr};
    group<F, Block, GroupUnit>(piece_at(i), min_of(piece, num_blocks - i * piece), tokens + i * piece, of_piece, y,
                               piece_at(i + 1), piece_at(i + 2));
  }
}

// The same for all 16 rows on a processor that multiplies whole tiles.
template <class F, class Block, class Unit>
[[gnu::noinline]] static void unit_tile(const uint8_t* blocks, int64_t num_blocks, const Block* tokens,
                                        const Edge& edge, float* const* y, const uint8_t* next) {
  constexpr int NT = Block::kTokens;
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
        of_token[i] = load_i32(sums[i][t]) + load_start(tokens->start_of(i, t));
      });
        const Scalars a = load_scalars(scales_of(*tokens) + t / 4 * 4);
      const Scalars a_sum = load_scalars(scale_sums_of<F>(*tokens) + t / 4 * 4);
      result[t] = F::template add<t % 4>(F::product(of_token, s), s, a, a_sum, result[t]);
    });
  }
  Unit::close();
  unrolled<NT>([&](auto t) QEFF_INLINE_BODY { edge.end(result[t], y[t], 0); });
}

// All rows. units: read where weights are not in scratch. has_products: what unpacking gave. next: kAskedLines lines
// for every block and row vector.
template <class F, class Block>
static inline void tile_panel(const uint8_t* units, const uint8_t* scratch, bool has_products, int64_t num_blocks,
                              const Block* tokens, const Edge& edge, float* const* y, const uint8_t* next) {
  constexpr int kLines = kAskedLines<F, Block>;
  if constexpr (kHasTileUnit) return unit_tile<F, Block, TileUnit>(scratch, num_blocks, tokens, edge, y, next);
  constexpr bool kUnit = Block::kTokens == 8 && kTakesUnit<F, Block::kHasOffset>;
  for (int v = 0; v < kPanelVecs; ++v, next += 64 * kLines * num_blocks) {
    if constexpr (kUnit) {
      if (!kLacksStart<F> || has_products) {
        strip<F, Block, StripUnit>(units, scratch, num_blocks, v, tokens, edge, y, next);
        continue;
      }
    }
    if constexpr (kTakesFew<F> && Block::kHasOffset && (Block::kTokens < 8 || F::kSums == 2)) {
      few<F, Block, FewUnit>(units, scratch, num_blocks, v, tokens, edge, y, next);
    } else if constexpr (kHasStrips && F::kSums == 2 && Block::kTokens == 8) {
      tile_of_halves<F, Block, kLines>(units, scratch, num_blocks, v, tokens, edge, y, next);
    } else if constexpr (!kUnit || kLacksStart<F>) {
      tile<F, Block, kLines>(units, scratch, num_blocks, v, tokens, edge, y, next);
    }
  }
}

}  // namespace qeff::QEFF_ISA
