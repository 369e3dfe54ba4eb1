// Attention over a paged cache, one source for every instruction set.
//
// A work item is some rows of queries of one span and one cache head: row r of a span is token r / group, query
// head r % group of those that share the cache head. A call goes over the cache in tiles of 32 rows (one block),
// keeping for each query the largest score, the sum of weights and the weighted sum of values so far.
//
// What a query computes does not depend on its neighbours: a product of several queries with a tile does for each
// of them the same operations in the same order as a product of one; rows that a query does not see are left out of
// its sums of values, and their scores are set to minus infinity before anything looks at them.
//
// In a tree a query's ancestors stand in rows whose numbers are not their positions. Tiles that reach into the
// step are gathered for each token, ancestor of depth i at row first + i, which is where a plain chain has it:
// a branch of a tree gives the bits that the same tokens give one after the other.
#include "kernels/attention.h"

#include <cmath>
#include <cstring>

#include QEFF_SIMD_HEADER

#include "simd/math.h"

#include "kernels/attention_cache.h"
#include "kernels/attention_product.h"
#include "kernels/attention_softmax.h"

namespace qeff::QEFF_ISA {
namespace {

constexpr int64_t kBlock = kCacheBlockLen;
constexpr int kTileBlocks = 2;  // blocks of a tile: what a query's sums are carried over at once
constexpr int64_t kTile = kTileBlocks * kBlock;
constexpr uint32_t kAll = 0xFFFFFFFFu;
// So few rows of queries take f16 as it is; more of them share a block that is unpacked once.
constexpr int64_t kFewRows = 2 * kQueries<uint16_t>;
// Below this many items a span with few queries is cut into smaller ones.
constexpr int64_t kWantedItems = 32;
constexpr float kInfinity = __builtin_inff();

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// ---- the queries of one call ----------------------------------------------------------------------------------

// How the memory of a thread is used. Sizes in floats, each part a multiple of 16.
struct Scratch {
  float* queries;  // [max_rows][query_stride], times scale (and divided by the softcap)
  float* sums;     // [max_rows][value_stride] weighted sums of values
  float* scores;   // [max_rows][kTile] scores of the tile, then weights
  float* keys;     // [key_dim][32] a block as floats
  float* values;   // [32][value_stride]
  float* top;      // [max_rows] largest score so far
  float* total;    // [max_rows] sum of weights so far
  float* shrink;   // [max_rows] what the tile makes of earlier sums
};

int64_t query_stride(const AttentionArgs& args) { return round_up(args.cache.key_dim, 4); }

// Rows of queries that are worked on together: as many as leave the tiles in the first-level cache.
constexpr int64_t kMaxRows = 96;
int64_t max_rows(const AttentionArgs& args) {
  return larger(args.cache.key_dim, args.cache.value_dim) <= 128 ? kMaxRows : kMaxRows / 2;
}

// Lays scratch out from `data` (null: only counts) and gives the number of floats.
int64_t lay_out(const AttentionArgs& args, float* data, Scratch* scratch) {
  const int64_t rows = max_rows(args);
  const int64_t stride = value_stride(args.cache.value_dim);
  const int64_t sizes[] = {rows * query_stride(args), rows * stride, rows * kTile,
                           args.cache.key_dim * kBlock, kBlock * stride, rows, rows, rows};
  float** parts[] = {&scratch->queries, &scratch->sums, &scratch->scores, &scratch->keys,
                     &scratch->values,  &scratch->top,  &scratch->total,  &scratch->shrink};
  int64_t offset = 0;
  for (int i = 0; i < 8; ++i) {
    *parts[i] = data == nullptr ? nullptr : data + offset;
    offset += round_up(sizes[i], kColumns);
  }
  return offset;
}

// Rows [first_row, first_row + num_rows) of a span and a cache head. low and high bound the rows that a query sees
// of the cache (in a tree: of its own chain).
struct Work {
  const AttentionArgs& args;
  const SpanView& span;
  int64_t head, group, first_row, num_rows;
  Scratch scratch;
  int64_t position[kMaxRows], low[kMaxRows], high[kMaxRows];
  uint32_t seen[kTileBlocks][kMaxRows];  // rows of each block of the tile that a query sees, one bit each

  int64_t token(int64_t row) const { return span.start + (first_row + row) / group; }
  int64_t query_head(int64_t row) const { return head * group + (first_row + row) % group; }
  const uint8_t* block(int64_t index) const {
    return args.cache.data + span.blocks[index] * args.cache.block_stride + head * args.cache.head_stride;
  }
};

// Some rows of the work, [first, last).
struct Range {
  int64_t begin, end;
};

// The hull of a mask.
Range hull(uint32_t seen) {
  if (seen == 0) return {0, 0};
  return {__builtin_ctz(seen), 32 - __builtin_clz(seen)};
}

uint32_t mask_of(int64_t begin, int64_t end) {
  begin = larger(begin, 0);
  end = smaller(end, kBlock);
  if (begin >= end) return 0;
  return (kAll << begin) & (kAll >> (kBlock - end));
}

// ---- one tile -------------------------------------------------------------------------------------------------

// scores = queries . keys of block b of the tile, as far as any row sees.
template <typename Element>
void score(Work& work, int b, const Element* keys, Range rows) {
  constexpr int64_t kStep = kQueries<Element>;
  const int64_t stride = query_stride(work.args);
  for (int64_t row = rows.begin; row < rows.end; row += kStep) {
    const int64_t num = smaller(kStep, rows.end - row);
    int64_t end = 0;
    for (int64_t i = row; i < row + num; ++i) end = larger(end, hull(work.seen[b][i]).end);
    const Product<Element> product = {
        .a = work.scratch.queries + row * stride, .b = keys, .c = work.scratch.scores + row * kTile + b * kBlock,
        .a_stride = stride, .b_stride = kBlock, .c_stride = kTile,
        .num_terms = work.args.cache.key_dim, .num_columns = round_up(end, kColumns), .adds = false};
    multiply<kStep>(num, product);
  }
}

// sums += weights . values of block b of the tile, each row over exactly the rows that it sees.
template <typename Element>
void add_values(Work& work, int b, const Element* values, Range rows) {
  constexpr int64_t kStep = kQueries<Element>;
  const int64_t stride = value_stride(work.args.cache.value_dim);
  const auto add = [&](int64_t row, int64_t num, Range range) {
    if (range.begin >= range.end) return;
    const Product<Element> product = {
        .a = work.scratch.scores + row * kTile + b * kBlock + range.begin, .b = values + range.begin * stride,
        .c = work.scratch.sums + row * stride, .a_stride = kTile, .b_stride = stride, .c_stride = stride,
        .num_terms = range.end - range.begin, .num_columns = stride, .adds = true};
    multiply<kStep>(num, product);
  };
  const uint32_t* seen = work.seen[b];
  for (int64_t row = rows.begin; row < rows.end; row += kStep) {
    const int64_t num = smaller(kStep, rows.end - row);
    Range shared = hull(seen[row]);
    bool is_same = true;
    for (int64_t i = row + 1; i < row + num; ++i) {
      const Range own = hull(seen[i]);
      is_same = is_same && seen[i] == seen[row];
      shared = {larger(shared.begin, own.begin), smaller(shared.end, own.end)};
    }
    if (is_same) {
      add(row, num, shared);
    } else if (shared.begin >= shared.end) {
      for (int64_t i = row; i < row + num; ++i) add(i, 1, hull(seen[i]));
    } else {
      for (int64_t i = row; i < row + num; ++i) add(i, 1, {hull(seen[i]).begin, shared.begin});
      add(row, num, shared);
      for (int64_t i = row; i < row + num; ++i) add(i, 1, {shared.end, hull(seen[i]).end});
    }
  }
}

// The blocks of the tile that a row sees anything of, and those between.
Range seen_blocks(const Work& work, int64_t row) {
  Range blocks = {0, kTileBlocks};
  while (blocks.begin < blocks.end && work.seen[blocks.begin][row] == 0) ++blocks.begin;
  while (blocks.begin < blocks.end && work.seen[blocks.end - 1][row] == 0) --blocks.end;
  return blocks;
}

// Softcap, slopes and the mask on the scores of one row with one block. offsets[i]: position of row i, less base.
void finish_scores(Work& work, int64_t row, int64_t b, int64_t base, const float* offsets) {
  float* scores = work.scratch.scores + row * kTile + b * kBlock;
  const AttentionArgs& args = work.args;
  if (args.softcap != 0) {
    const F32 cap = set1(args.softcap);
    for (int64_t i = 0; i < kBlock; i += kLanes) store(scores + i, tanh(load(scores + i)) * cap);
  }
  if (args.slopes != nullptr) {
    const F32 slope = set1(args.slopes[work.query_head(row)]);
    const F32 distance = set1(static_cast<float>(base - work.position[row]));
    for (int64_t i = 0; i < kBlock; i += kLanes) {
      store(scores + i, fma(slope, load(offsets + i) + distance, load(scores + i)));
    }
  }
  const uint32_t seen = work.seen[b][row];
  if (seen != kAll) {
    for (int64_t i = 0; i < kBlock; ++i) {
      if ((seen >> i & 1u) == 0) scores[i] = -kInfinity;
    }
  }
}

// Raises the top of a row to what its blocks hold; the earlier sums must then be multiplied by exp(shrink).
void raise_top(Work& work, int64_t row, Range blocks) {
  const float* scores = work.scratch.scores + row * kTile;
  constexpr int64_t kHalf = kBlock / 2;
  F32 top[kVecs];
  for (int v = 0; v < kVecs; ++v) top[v] = load(scores + blocks.begin * kBlock + v * kLanes);
  for (int64_t i = blocks.begin * kBlock + kHalf; i < blocks.end * kBlock; i += kHalf) {
    for (int v = 0; v < kVecs; ++v) top[v] = max(top[v], load(scores + i + v * kLanes));
  }
  for (int v = 1; v < kVecs; ++v) top[0] = max(top[0], top[v]);
  const float tile_top = reduce_max(top[0]);
  const float old_top = work.scratch.top[row];
  const float new_top = old_top > tile_top ? old_top : tile_top;
  work.scratch.top[row] = new_top;
  // The first tile finds sums of zero, whatever they are multiplied by.
  work.scratch.shrink[row] = old_top == -kInfinity ? -kInfinity : old_top - new_top;
}

// Scores of one row become weights. Their sum is added up in a tree for each block, halves first, on every
// instruction set alike, and then block by block.
void weigh(Work& work, int64_t row, Range blocks) {
  constexpr int kNumVecs = kBlock / kLanes, kStep = kNumVecs < 4 ? kNumVecs : 4;
  const F32 top = set1(work.scratch.top[row]);
  float sum = 0;
  for (int64_t b = blocks.begin; b < blocks.end; ++b) {
    float* scores = work.scratch.scores + row * kTile + b * kBlock;
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

// From scores to weights, for rows whose scores with the tile at base are there.
void apply_softmax(Work& work, int64_t base, const float (*offsets)[kBlock], Range rows) {
  const Scratch& scratch = work.scratch;
  const int64_t stride = value_stride(work.args.cache.value_dim);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const Range blocks = seen_blocks(work, row);
    scratch.shrink[row] = 0;
    if (blocks.begin == blocks.end) continue;
    for (int64_t b = blocks.begin; b < blocks.end; ++b) finish_scores(work, row, b, base, offsets[b]);
    raise_top(work, row, blocks);
  }
  // Groups of lanes may reach over rows that are not asked for; they are within scratch, and are set before use.
  for (int64_t row = rows.begin / kLanes * kLanes; row < rows.end; row += kLanes) {
    F32 shrink = load(scratch.shrink + row);
    exp_nonpositive<1>(&shrink);
    store(scratch.shrink + row, shrink);
  }
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const Range blocks = seen_blocks(work, row);
    if (blocks.begin == blocks.end) continue;
    weigh(work, row, blocks);
    // Multiplying by 1 changes nothing.
    if (scratch.shrink[row] == 1.0f) continue;
    const F32 shrink = set1(scratch.shrink[row]);
    float* sums = scratch.sums + row * stride;
    for (int64_t e = 0; e < stride; e += kLanes) store(sums + e, load(sums + e) * shrink);
  }
}

// ---- a call ---------------------------------------------------------------------------------------------------

// Positions of the rows of a tile, less that of its first.
struct Offsets {
  float of[kTileBlocks][kBlock];
};
constexpr Offsets count_rows() {
  Offsets offsets = {};
  for (int64_t i = 0; i < kTile; ++i) offsets.of[i / kBlock][i % kBlock] = static_cast<float>(i);
  return offsets;
}
constexpr Offsets kOffsets = count_rows();

// Asks for a block that will be read soon. Where few queries share it, reading it is most of the work.
void prefetch_block(const Work& work, int64_t index) {
  const CacheView& cache = work.args.cache;
  const uint8_t* data = work.block(index);
  const int64_t bytes = key_bytes(cache.format, cache.key_dim) + value_bytes(cache.format, cache.value_dim);
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(data + i);
}

// The tile at base, whose rows have their numbers as positions, for all rows of the work that see it.
void add_tile(Work& work, int64_t base) {
  const CacheView& cache = work.args.cache;
  Range rows = {work.num_rows, 0};
  uint32_t any[kTileBlocks] = {};
  for (int64_t row = 0; row < work.num_rows; ++row) {
    uint32_t in_tile = 0;
    for (int b = 0; b < kTileBlocks; ++b) {
      const int64_t first = base + b * kBlock;
      work.seen[b][row] = mask_of(work.low[row] - first, work.high[row] - first);
      any[b] |= work.seen[b][row];
      in_tile |= work.seen[b][row];
    }
    if (in_tile != 0) rows = {smaller(rows.begin, row), row + 1};
  }
  const bool has_few_rows = rows.end - rows.begin <= kFewRows;
  for (int b = 0; b < kTileBlocks; ++b) {
    if (any[b] == 0) continue;
    const uint8_t* keys = work.block(base / kBlock + b);
    if (cache.format == CacheFormat::kF32) {
      score(work, b, reinterpret_cast<const float*>(keys), rows);
    } else if (cache.format == CacheFormat::kF16 && has_few_rows) {
      score(work, b, reinterpret_cast<const uint16_t*>(keys), rows);
    } else {
      unpack_keys(cache.format, cache.key_dim, keys, work.scratch.keys);
      score<float>(work, b, work.scratch.keys, rows);
    }
  }
  apply_softmax(work, base, kOffsets.of, rows);
  for (int b = 0; b < kTileBlocks; ++b) {
    if (any[b] == 0) continue;
    const uint8_t* head = work.block(base / kBlock + b);
    const uint8_t* values = head + key_bytes(cache.format, cache.key_dim);
    if (cache.format == CacheFormat::kF32) {
      add_values(work, b, reinterpret_cast<const float*>(values), rows);
    } else if (cache.format == CacheFormat::kF16 && has_few_rows) {
      add_values(work, b, reinterpret_cast<const uint16_t*>(values), rows);
    } else {
      for (int64_t i = hull(any[b]).begin; i < hull(any[b]).end; ++i) {
        float* value = work.scratch.values + i * value_stride(cache.value_dim);
        unpack_value_row(cache.format, cache.key_dim, cache.value_dim, head, i, value);
      }
      add_values<float>(work, b, work.scratch.values, rows);
    }
  }
}

bool sees(const AttentionArgs& args, int64_t position, int64_t key_position) {
  if (args.window != 0 && key_position <= position - args.window) return false;
  return args.chunk == 0 || key_position / args.chunk == position / args.chunk;
}

// The tile at base of the chain of one token in a tree, for the work's rows [first, last), all of that token.
void add_gathered(Work& work, int64_t base, Range rows) {
  const CacheView& cache = work.args.cache;
  const SpanView& span = work.span;
  const int64_t position = work.position[rows.begin];
  // The token at depth d of the chain is row span.first + d of it: walk from the token upwards.
  int64_t source[kTile];
  Offsets offsets = kOffsets;
  uint32_t seen[kTileBlocks] = {};
  for (int64_t i = 0; i < kTile; ++i) {
    source[i] = base + i;
    if (base + i < span.first && sees(work.args, position, base + i)) seen[i / kBlock] |= 1u << (i % kBlock);
  }
  int64_t place = work.high[rows.begin] - 1 - base;
  for (int64_t ancestor = work.token(rows.begin); ancestor >= 0 && place >= 0; --place) {
    if (place < kTile) {
      const int64_t key_position = work.args.positions[ancestor];
      source[place] = span.first + (ancestor - span.start);
      offsets.of[place / kBlock][place % kBlock] = static_cast<float>(key_position - base);
      if (sees(work.args, position, key_position)) seen[place / kBlock] |= 1u << (place % kBlock);
    }
    ancestor = work.args.parents[ancestor];
  }
  for (int b = 0; b < kTileBlocks; ++b) {
    for (int64_t row = rows.begin; row < rows.end; ++row) work.seen[b][row] = seen[b];
    if (seen[b] == 0) continue;
    for (int64_t i = 0; i < kBlock; ++i) {
      if ((seen[b] >> i & 1u) == 0) continue;
      const int64_t from = source[b * kBlock + i];
      unpack_key_row(cache.format, cache.key_dim, work.block(from / kBlock), from % kBlock, i, work.scratch.keys);
    }
    score<float>(work, b, work.scratch.keys, rows);
  }
  apply_softmax(work, base, offsets.of, rows);
  const int64_t stride = value_stride(cache.value_dim);
  for (int b = 0; b < kTileBlocks; ++b) {
    if (seen[b] == 0) continue;
    for (int64_t i = 0; i < kBlock; ++i) {
      float* value = work.scratch.values + i * stride;
      const int64_t from = source[b * kBlock + i];
      if ((seen[b] >> i & 1u) != 0) {
        unpack_value_row(cache.format, cache.key_dim, cache.value_dim, work.block(from / kBlock), from % kBlock, value);
      } else {
        // A hole within the hull has a weight of zero and must not hold a NaN.
        std::memset(value, 0, static_cast<size_t>(stride) * sizeof(float));
      }
    }
    add_values<float>(work, b, work.scratch.values, rows);
  }
}

// Whether the tokens of a span follow each other in one chain, as they do where there are no parents.
bool is_chain(const AttentionArgs& args, const SpanView& span) {
  if (args.parents == nullptr) return true;
  for (int64_t t = span.start; t < span.stop; ++t) {
    if (args.parents[t] != (t == span.start ? -1 : t - 1)) return false;
    if (args.positions[t] != span.first + (t - span.start)) return false;
  }
  return true;
}

// Fills in what each row of the work starts from.
void begin(Work& work, bool has_tree) {
  const AttentionArgs& args = work.args;
  const int64_t key_dim = args.cache.key_dim;
  const float scale = args.softcap != 0 ? args.scale / args.softcap : args.scale;
  for (int64_t row = 0; row < work.num_rows; ++row) {
    const int64_t token = work.token(row), head = work.query_head(row);
    const float* q = args.q + token * args.q_stride + head * key_dim;
    float* query = work.scratch.queries + row * query_stride(args);
    for (int64_t d = 0; d < key_dim; ++d) query[d] = q[d] * scale;
    int64_t depth = token - work.span.start;
    if (has_tree) {
      depth = 0;
      for (int64_t up = args.parents[token]; up >= 0; up = args.parents[up]) ++depth;
    }
    const int64_t position = has_tree ? args.positions[token] : work.span.first + depth;
    work.position[row] = position;
    work.high[row] = work.span.first + depth + 1;
    work.low[row] = args.window != 0 ? larger(0, position - args.window + 1) : 0;
    if (args.chunk != 0) work.low[row] = larger(work.low[row], position / args.chunk * args.chunk);
    // A sink is a score that was there before all others and has no value.
    work.scratch.top[row] = args.sinks != nullptr ? args.sinks[head] : -kInfinity;
    work.scratch.total[row] = args.sinks != nullptr ? 1.0f : 0.0f;
  }
  const int64_t num_sums = work.num_rows * value_stride(args.cache.value_dim);
  std::memset(work.scratch.sums, 0, static_cast<size_t>(num_sums) * sizeof(float));
}

void attend_rows(Work& work) {
  const AttentionArgs& args = work.args;
  const bool has_tree = !is_chain(args, work.span);
  begin(work, has_tree);
  int64_t low = work.low[0], high = work.high[0];
  for (int64_t row = 1; row < work.num_rows; ++row) {
    low = smaller(low, work.low[row]);
    high = larger(high, work.high[row]);
  }
  // In a tree the positions before the step are rows; from the tile of its first token on, chains differ.
  const int64_t shared_end = has_tree ? work.span.first / kTile * kTile : high;
  for (int64_t base = low / kTile * kTile; base < shared_end; base += kTile) {
    if (work.num_rows <= kFewRows) {
      for (int64_t next = base + kTile; next < smaller(shared_end, base + 2 * kTile); next += kBlock) {
        prefetch_block(work, next / kBlock);
      }
    }
    add_tile(work, base);
  }
  if (has_tree) {
    for (int64_t first = 0, last; first < work.num_rows; first = last) {
      last = first + 1;
      while (last < work.num_rows && work.token(last) == work.token(first)) ++last;
      for (int64_t base = shared_end; base < work.high[first]; base += kTile) add_gathered(work, base, {first, last});
    }
  }
  const int64_t value_dim = args.cache.value_dim, stride = value_stride(value_dim);
  for (int64_t row = 0; row < work.num_rows; ++row) {
    float* out = args.out + work.token(row) * args.out_stride + work.query_head(row) * value_dim;
    const float* sums = work.scratch.sums + row * stride;
    const float factor = 1.0f / work.scratch.total[row];
    for (int64_t e = 0; e < value_dim; ++e) out[e] = sums[e] * factor;
  }
}

// ---- the table ------------------------------------------------------------------------------------------------

int64_t head_bytes(CacheFormat format, int64_t key_dim, int64_t value_dim) {
  return key_bytes(format, key_dim) + value_bytes(format, value_dim);
}

void write(const AttentionArgs& args, int64_t span, int64_t first, int64_t last) {
  const SpanView& view = args.spans[span];
  const CacheView& cache = args.cache;
  for (int64_t t = first; t < last; ++t) {
    const int64_t row = view.first + (t - view.start);
    uint8_t* block = cache.data + view.blocks[row / kBlock] * cache.block_stride;
    for (int64_t head = 0; head < cache.num_heads; ++head) {
      write_row(cache.format, cache.key_dim, cache.value_dim, block + head * cache.head_stride, row % kBlock,
                args.k + t * args.k_stride + head * cache.key_dim, args.v + t * args.v_stride + head * cache.value_dim);
    }
  }
}

// How the rows of one head of a span are cut into items of at most unit rows.
struct Cut {
  int64_t num_rows, unit, num_units;
  bool is_small;  // all rows fit into one call
};

Cut cut(const AttentionArgs& args, const SpanView& span) {
  const int64_t num_rows = (span.stop - span.start) * (args.num_heads / args.cache.num_heads);
  const int64_t most = max_rows(args);
  const bool is_small = num_rows <= most;
  int64_t num_units = ceil_div(num_rows, most);
  if (is_small) num_units = ceil_div(kWantedItems, larger(1, args.num_spans * args.cache.num_heads));
  int64_t unit = larger(1, ceil_div(num_rows, num_units));
  if (unit > kQueries<float>) unit = smaller(most, round_up(unit, kQueries<float>));
  return {num_rows, unit, ceil_div(num_rows, unit), is_small};
}

int64_t num_items(const AttentionArgs& args) {
  int64_t num = 0;
  for (int64_t s = 0; s < args.num_spans; ++s) num += cut(args, args.spans[s]).num_units * args.cache.num_heads;
  return num;
}

void attend(const AttentionArgs& args, int64_t first, int64_t last, void* memory) {
  Scratch scratch;
  lay_out(args, static_cast<float*>(memory), &scratch);
  const int64_t group = args.num_heads / args.cache.num_heads;
  int64_t item = 0;  // the first of the span
  for (int64_t s = 0; s < args.num_spans && item < last; ++s) {
    const Cut c = cut(args, args.spans[s]);
    const int64_t end = item + c.num_units * args.cache.num_heads;
    for (int64_t next = larger(first, item); next < smaller(last, end);) {
      const int64_t head = (next - item) / c.num_units;
      int64_t unit = (next - item) % c.num_units;
      int64_t num = 1;
      if (c.is_small) {
        // Neighbours go over the same keys: together.
        num = smaller(c.num_units - unit, smaller(last, end) - next);
      } else {
        // Early units see few keys and late ones many: in turn, so that every stretch of items costs the same.
        unit = unit % 2 == 0 ? unit / 2 : c.num_units - 1 - unit / 2;
      }
      const int64_t row = unit * c.unit;
      Work work = {.args = args, .span = args.spans[s], .head = head, .group = group, .first_row = row,
                   .num_rows = smaller(c.num_rows - row, num * c.unit), .scratch = scratch,
                   .position = {}, .low = {}, .high = {}, .seen = {}};
      attend_rows(work);
      next += num;
    }
    item = end;
  }
}

void copy_cache_row(const CacheView& cache, int64_t from, int64_t to) {
  for (int64_t h = 0; h < cache.num_heads; ++h) {
    uint8_t* data = cache.data + h * cache.head_stride;
    copy_row(cache.format, cache.key_dim, cache.value_dim, data + from / kBlock * cache.block_stride, from % kBlock,
             data + to / kBlock * cache.block_stride, to % kBlock);
  }
}

size_t scratch_bytes(const AttentionArgs& args) {
  Scratch unused;
  return static_cast<size_t>(lay_out(args, nullptr, &unused)) * sizeof(float);
}

}  // namespace

const AttentionKernels& attention_kernels() {
  static constexpr AttentionKernels kKernels = {head_bytes, write, copy_cache_row, num_items, attend, scratch_bytes};
  return kKernels;
}

}  // namespace qeff::QEFF_ISA
