// One tile of the cache for some rows of queries: scores, their softmax, and the values so weighted.
//
// What a query computes does not depend on its neighbours: a product of several queries with a tile does for each
// of them the same operations in the same order as a product of one; rows that a query does not see are left out of
// its sums of values, and their scores are set to minus infinity before anything looks at them.
//
// Included by attention.cc alone, after the SIMD layer.
#pragma once

#include "kernels/attention_softmax.h"
#include "kernels/attention_work.h"

namespace qeff::QEFF_ISA {

// Where the rows of a tile are.
template <typename Element>
struct Tile {
  const Element* keys[kTileBlocks];    // [key_dim][32]
  const Element* values[kTileBlocks];  // [32][value_stride]
  bool are_values_joined;              // one block's lie behind the other's
  // What is read after each part, for products to fetch meanwhile. For floats null where nothing needs to be.
  const uint8_t* after_keys[kTileBlocks];
  const uint8_t* after_values[kTileBlocks];
  const float* offsets;  // [kTile] positions of the rows, less base
  int64_t base;
  uint64_t holes;        // rows that no query sees though it sees some before and some behind, one bit each
};

// Positions of the rows of a tile, less that of its first.
struct Offsets {
  float of[kTile];
};
constexpr Offsets count_rows() {
  Offsets offsets = {};
  for (int64_t i = 0; i < kTile; ++i) offsets.of[i] = static_cast<float>(i);
  return offsets;
}
constexpr Offsets kOffsets = count_rows();

// Blocks of the tile that a row sees anything of, and those between.
static inline Range seen_blocks(Range in_tile) {
  if (in_tile.is_empty()) return {0, 0};
  return {in_tile.begin / kBlock, ceil_div(in_tile.end, kBlock)};
}

// scores = queries . keys of the tile, as far as any of the rows sees.
template <typename Element>
static inline void score(Work& work, const Tile<Element>& tile, Range rows) {
  const int64_t stride = query_stride(work.args), step = work.step();
  for (int64_t row = rows.begin; row < rows.end; row += step) {
    const int64_t num = smaller(step, rows.end - row);
    Range seen = work.in_tile[row];
    for (int64_t i = row + 1; i < row + num; ++i) {
      const Range own = work.in_tile[i];
      if (own.is_empty()) continue;
      seen = seen.is_empty() ? own : Range{smaller(seen.begin, own.begin), larger(seen.end, own.end)};
    }
    const Range blocks = seen_blocks(seen);
    for (int64_t b = blocks.begin; b < blocks.end; ++b) {
      const int64_t end = smaller(kBlock, seen.end - b * kBlock);
      const Product<Element> product = {
          .a = work.scratch.queries + row * stride, .b = tile.keys[b],
          .c = work.scores(row) + b * kBlock, .a_stride = stride, .b_stride = kBlock,
          .c_stride = kTile, .num_terms = work.args.cache.key_dim, .num_columns = end,
          .adds = false, .ahead = tile.after_keys[b]};
      multiply(num, product);
    }
  }
}

// sums += weights . values of the tile, each row over exactly the rows that it sees.
template <typename Element>
static inline void add_values(Work& work, const Tile<Element>& tile, Range rows) {
  const int64_t stride = value_stride(work.args.cache.value_dim), step = work.step();
  const auto add = [&](int64_t row, int64_t num, Range range) {
    while (!range.is_empty()) {
      const int64_t b = range.begin / kBlock;
      const int64_t end = tile.are_values_joined ? range.end : smaller(range.end, (b + 1) * kBlock);
      const Product<Element> product = {
          .a = work.scores(row) + range.begin, .b = tile.values[b] + range.begin % kBlock * stride,
          .c = work.scratch.sums + row * stride, .a_stride = kTile, .b_stride = stride, .c_stride = stride,
          .num_terms = end - range.begin, .num_columns = stride, .adds = true, .ahead = tile.after_values[b]};
      multiply(num, product);
      range.begin = end;
    }
  };
  for (int64_t row = rows.begin; row < rows.end; row += step) {
    const int64_t last = smaller(row + step, rows.end);
    Range shared = work.in_tile[row];
    for (int64_t i = row + 1; i < last; ++i) shared = common(shared, work.in_tile[i]);
    if (shared.is_empty()) shared = {kTile, kTile};
    // Rows that see the same go together: first what lies before the part that all see, then that part, then the rest.
    const auto add_runs = [&](Range limits) {
      for (int64_t first = row, next; first < last; first = next) {
        next = first + 1;
        while (next < last && work.in_tile[next] == work.in_tile[first]) ++next;
        add(first, next - first, common(work.in_tile[first], limits));
      }
    };
    add_runs({0, shared.begin});
    add(row, last - row, shared);
    add_runs({shared.end, kTile});
  }
}

// Softcap, slopes and the mask on the scores of one row.
template <typename Element>
static inline void finish_scores(Work& work, const Tile<Element>& tile, int64_t row, Range blocks) {
  float* scores = work.scores(row);
  const AttentionArgs& args = work.args;
  const int64_t begin = blocks.begin * kBlock, end = blocks.end * kBlock;
  if (args.softcap != 0) {
    const F32 cap = set1(args.softcap);
    for (int64_t i = begin; i < end; i += kLanes) store(scores + i, tanh(load(scores + i)) * cap);
  }
  if (args.slopes != nullptr) {
    const F32 slope = set1(args.slopes[work.query_head(row)]);
    const F32 distance = set1(static_cast<float>(tile.base - work.position[row]));
    for (int64_t i = begin; i < end; i += kLanes) {
      store(scores + i, fma(slope, load(tile.offsets + i) + distance, load(scores + i)));
    }
  }
  const Range seen = work.in_tile[row];
  for (int64_t i = begin; i < seen.begin; ++i) scores[i] = -kInfinity;
  for (int64_t i = seen.end; i < end; ++i) scores[i] = -kInfinity;
  for (uint64_t holes = tile.holes; holes != 0; holes &= holes - 1) scores[__builtin_ctzll(holes)] = -kInfinity;
}

// The largest score of a row.
static inline float top_of(const Work& work, int64_t row, Range blocks) {
  const float* scores = work.scores(row);
  constexpr int64_t kHalf = kBlock / 2;
  F32 top[kVecs];
  for (int v = 0; v < kVecs; ++v) top[v] = load(scores + blocks.begin * kBlock + v * kLanes);
  for (int64_t i = blocks.begin * kBlock + kHalf; i < blocks.end * kBlock; i += kHalf) {
    for (int v = 0; v < kVecs; ++v) top[v] = max(top[v], load(scores + i + v * kLanes));
  }
  for (int v = 1; v < kVecs; ++v) top[0] = max(top[0], top[v]);
  return reduce_max(top[0]);
}

// Scores of one row become weights. Their sum is added up in a tree for each block, halves first, on every
// instruction set alike, and then block by block.
static inline __attribute__((always_inline)) void weigh(Work& work, int64_t row, Range blocks) {
  constexpr int kNumVecs = kBlock / kLanes, kStep = kNumVecs < kExpVecs ? kNumVecs : kExpVecs;
  const F32 top = set1(work.scratch.top[row]);
  float sum = 0;
  for (int64_t b = blocks.begin; b < blocks.end; ++b) {
    float* scores = work.scores(row) + b * kBlock;
    F32 weights[kNumVecs];
    for (int i = 0; i < kNumVecs; i += kStep) {
      for (int j = 0; j < kStep; ++j) weights[i + j] = load(scores + (i + j) * kLanes) - top;
      exp_nonpositive<kStep>(weights + i);
      for (int j = 0; j < kStep; ++j) store(scores + (i + j) * kLanes, weights[i + j]);
    }
    for (int half = kNumVecs / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) weights[i] = weights[i] + weights[i + half];
    }
    sum += reduce_add(weights[0]);
  }
  work.scratch.total[row] = std::fma(work.scratch.total[row], work.scratch.shrink[row], sum);
}

// From scores to weights, for rows whose scores with the tile are there.
template <typename Element>
static inline void apply_softmax(Work& work, const Tile<Element>& tile, Range rows) {
  const Scratch& scratch = work.scratch;
  const int64_t stride = value_stride(work.args.cache.value_dim);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const Range blocks = seen_blocks(work.in_tile[row]);
    if (!blocks.is_empty()) finish_scores(work, tile, row, blocks);
    scratch.shrink[row] = blocks.is_empty() ? -kInfinity : top_of(work, row, blocks);
  }
  // The tops rise to what the tile holds. What was summed up before is multiplied by the exponential of the difference;
  // the first tile finds sums of zero and a top of minus infinity. Groups of lanes may reach over rows that are not
  // asked for, whose tops stay.
  const Range lanes = {rows.begin / kLanes * kLanes, round_up(rows.end, kLanes)};
  for (int64_t row = lanes.begin; row < rows.begin; ++row) scratch.shrink[row] = -kInfinity;
  for (int64_t row = rows.end; row < lanes.end; ++row) scratch.shrink[row] = -kInfinity;
  for (int64_t row = lanes.begin; row < lanes.end; row += kLanes) {
    const F32 old_top = load(scratch.top + row), new_top = max(old_top, load(scratch.shrink + row));
    F32 shrink = old_top - new_top;
    exp_nonpositive<1>(&shrink);
    store(scratch.top + row, new_top);
    store(scratch.shrink + row, shrink);
  }
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const Range blocks = seen_blocks(work.in_tile[row]);
    if (blocks.is_empty()) continue;
    weigh(work, row, blocks);
    // Multiplying by 1 changes nothing.
    if (scratch.shrink[row] == 1.0f) continue;
    const F32 shrink = set1(scratch.shrink[row]);
    float* sums = scratch.sums + row * stride;
    for (int64_t e = 0; e < stride; e += kLanes) store(sums + e, load(sums + e) * shrink);
  }
}

// ---- halves --------------------------------------------------------------------------------------------------------

constexpr float kOnes[kQueries] = {1, 1, 1, 1};

// What all of some rows see of the tile, and what any of them does.
struct Sight {
  Range shared, all;
};
static inline Sight sight_of(const Work& work, int64_t first, int64_t last) {
  Sight sight = {work.in_tile[first], work.in_tile[first]};
  for (int64_t row = first + 1; row < last; ++row) {
    const Range own = work.in_tile[row];
    sight.shared = common(sight.shared, own);
    if (own.is_empty()) continue;
    sight.all = sight.all.is_empty() ? own
                                     : Range{smaller(sight.all.begin, own.begin), larger(sight.all.end, own.end)};
  }
  if (sight.shared.is_empty()) sight.shared = {kTile, kTile};
  return sight;
}

template <class Unit>
static inline void score_halves(Work& work, const Tile<uint16_t>& tile, Range rows) {
  const int64_t key_dim = work.args.cache.key_dim, stride = half_query_stride(work.args), step = work.step();
  for (int64_t row = rows.begin; row < rows.end; row += step) {
    const int64_t num = smaller(step, rows.end - row);
    const Range seen = sight_of(work, row, row + num).all, blocks = seen_blocks(seen);
    for (int64_t b = blocks.begin; b < blocks.end; ++b) {
      for (int64_t d = 0; d < key_dim; d += kGroup) {
        const uint16_t* keys = tile.keys[b] + d * kBlock;
        const Range terms = {0, smaller(kGroup, key_dim - d)};
        const HalfProduct product = {
            .a = work.half_query(row) + d, .b = {keys, keys + 2 * kChain * kBlock},
            .c = work.scores(row) + b * kBlock, .a_stride = stride, .b_stride = kBlock, .c_stride = kTile,
            .num_columns = smaller(kBlock, seen.end - b * kBlock), .gain = work.scratch.unit + row,
            .keep = d == 0 ? nullptr : kOnes, .shared = terms, .all = terms, .own = nullptr,
            .ahead = tile.after_keys[b] == nullptr ? nullptr : tile.after_keys[b] + d * kBlock * 2};
        sum_halves<Unit>(num, product);
      }
    }
  }
}

template <class Unit>
static inline void add_half_values(Work& work, const Tile<uint16_t>& tile, Range rows) {
  const int64_t stride = value_stride(work.args.cache.value_dim), step = work.step();
  static_assert(kTile == kGroup && kTileBlocks == 2);
  for (int64_t row = rows.begin; row < rows.end; row += step) {
    const int64_t num = smaller(step, rows.end - row);
    const Sight sight = sight_of(work, row, row + num);
    const HalfProduct product = {
        .a = work.weights(row), .b = {tile.values[0], tile.values[1]}, .c = work.scratch.sums + row * stride,
        .a_stride = kTile, .b_stride = stride, .c_stride = stride, .num_columns = stride,
        .gain = work.scratch.gain + row, .keep = work.scratch.shrink + row, .shared = sight.shared,
        .all = sight.all, .own = work.in_tile + row, .ahead = tile.after_values[0]};
    sum_halves<Unit>(num, product);
  }
}

// weigh for halves: relative to the largest of the tile, so that small ones far from it lose nothing.
template <class Unit>
static inline __attribute__((always_inline)) void weigh_halves(Work& work, int64_t row, Range blocks, float tile_top) {
  constexpr int kNumVecs = kBlock / kLanes;
  const F32 top = set1(tile_top), limit = set1(kLargestFactor);
  float sum = 0;
  for (int64_t b = blocks.begin; b < blocks.end; ++b) {
    const float* scores = work.scores(row) + b * kBlock;
    uint16_t* halves = work.weights(row) + b * kBlock;
    F32 weights[kNumVecs];
    for (int i = 0; i < kNumVecs; ++i) weights[i] = load(scores + i * kLanes) - top;
    exp_nonpositive<kNumVecs>(weights);
    for (int i = 0; i < kNumVecs; i += 2) {
      Unit::store(halves + i * kLanes, weights[i] * limit, weights[i + 1] * limit);
    }
    for (int half = kNumVecs / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) weights[i] = weights[i] + weights[i + half];
    }
    sum += reduce_add(weights[0]);
  }
  const Scratch& scratch = work.scratch;
  scratch.total[row] = std::fma(sum, scratch.gain[row], scratch.total[row] * scratch.shrink[row]);
  scratch.gain[row] *= 1 / kLargestFactor;
}

template <class Unit>
static inline void apply_half_softmax(Work& work, const Tile<uint16_t>& tile, Range rows) {
  const Scratch& scratch = work.scratch;
  float tops[kTogether + 2 * kLanes];
  const Range lanes = {rows.begin / kLanes * kLanes, round_up(rows.end, kLanes)};
  for (int64_t row = lanes.begin; row < lanes.end; ++row) {
    const bool is_asked = row >= rows.begin && row < rows.end;
    const Range blocks = is_asked ? seen_blocks(work.in_tile[row]) : Range{0, 0};
    if (!blocks.is_empty()) finish_scores(work, tile, row, blocks);
    tops[row - lanes.begin] = blocks.is_empty() ? -kInfinity : top_of(work, row, blocks);
  }
  // As apply_softmax does it; the sums of the tile are multiplied as well.
  for (int64_t row = lanes.begin; row < lanes.end; row += kLanes) {
    const F32 old_top = load(scratch.top + row), tile_top = load(tops + row - lanes.begin);
    const F32 new_top = max(old_top, tile_top);
    F32 factors[2] = {old_top - new_top, tile_top - new_top};
    exp_nonpositive<2>(factors);
    store(scratch.top + row, new_top);
    store(scratch.shrink + row, factors[0]);
    store(scratch.gain + row, factors[1]);
  }
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const Range blocks = seen_blocks(work.in_tile[row]);
    if (!blocks.is_empty()) {
      weigh_halves<Unit>(work, row, blocks, tops[row - lanes.begin]);
    } else {  // nothing changes
      scratch.shrink[row] = 1;
      scratch.gain[row] = 0;
    }
  }
}

template <class Unit>
static inline void add_half_tile(Work& work, const Tile<uint16_t>& tile, Range rows) {
  const int64_t together = kTogether / work.step() * work.step();
  for (int64_t row = rows.begin; row < rows.end; row += together) {
    const Range some = {row, smaller(row + together, rows.end)};
    work.together = row;
    score_halves<Unit>(work, tile, some);
    apply_half_softmax<Unit>(work, tile, some);
    add_half_values<Unit>(work, tile, some);
  }
}

template <typename Element>
static inline void add_tile(Work& work, const Tile<Element>& tile, Range rows) {
  const int64_t together = kTogether / work.step() * work.step();
  for (int64_t row = rows.begin; row < rows.end; row += together) {
    const Range some = {row, smaller(row + together, rows.end)};
    work.together = row;
    score(work, tile, some);
    apply_softmax(work, tile, some);
    add_values(work, tile, some);
  }
}

}  // namespace qeff::QEFF_ISA
