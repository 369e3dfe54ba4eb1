// The queries of one call: some rows of one span and one cache head, and the memory that a thread works in.
//
// Row r of a span is its attending token r / group, query head r % group of those that share the cache head.
//
// Included by attention.cc alone, after the SIMD layer.
#pragma once

#include "kernels/attention_cache.h"
#include "kernels/attention_half.h"
#include "kernels/attention_product.h"

namespace qeff::QEFF_ISA {

constexpr int64_t kBlock = kCacheBlockLen;
constexpr int64_t kTileBlocks = 2;  // blocks of a tile: what a query's sums are carried over at once
constexpr int64_t kTile = kTileBlocks * kBlock;
constexpr float kInfinity = __builtin_inff();

// How the memory of a thread is used. Sizes in floats, each part a multiple of 16.
struct Scratch {
  float* queries;  // [max_rows][query_stride], times scale (and divided by the softcap)
  float* sums;     // [max_rows][value_stride] weighted sums of values
  float* scores;   // [kTogether][kTile] scores of the tile, then weights
  float* keys;     // [kTileBlocks][key_dim][32] a tile as floats
  float* values;   // [kTile][value_stride]
  float* top;      // [max_rows] largest score so far
  float* total;    // [max_rows] sum of weights so far
  float* shrink;   // [max_rows] what the tile makes of earlier sums
  // Where halves are multiplied.
  float* gain;      // [max_rows] what the sums of the tile are multiplied by: first scores, then values
  float* unit;      // [max_rows] what a unit of the rounded queries is
  float* weights;   // [kTogether][kTile] halves
};

static inline int64_t query_stride(const AttentionArgs& args) { return round_up(args.cache.key_dim, 4); }
static inline int64_t half_query_stride(const AttentionArgs& args) { return round_up(args.cache.key_dim, 8); }

// Whether the cache is multiplied as it is, in halves.
static inline bool multiplies_halves(const AttentionArgs& args) {
  return kHasHalfUnit && args.cache.format == CacheFormat::kF16;
}

// Rows that go through a tile together: few, so that keys stay in the first-level cache for all of them, and then
// values do.
constexpr int64_t kTogether = 24;

// Rows of queries that share a tile once it is unpacked.
constexpr int64_t kMaxRows = 192;
static inline int64_t max_rows(const AttentionArgs& args) {
  return larger(args.cache.key_dim, args.cache.value_dim) <= 128 ? kMaxRows : kMaxRows / 2;
}

// Lays scratch out from `data` (null: only counts) and gives the number of floats.
static inline int64_t lay_out(const AttentionArgs& args, float* data, Scratch* scratch) {
  const int64_t rows = max_rows(args);
  const int64_t stride = value_stride(args.cache.value_dim);
  const int64_t sizes[] = {rows * query_stride(args), rows * stride, kTogether * kTile, args.cache.key_dim * kTile,
                           kTile * stride, rows, rows, rows, rows, rows, kTogether * kTile / 2};
  float** parts[] = {&scratch->queries, &scratch->sums,  &scratch->scores, &scratch->keys, &scratch->values,
                     &scratch->top,     &scratch->total, &scratch->shrink, &scratch->gain, &scratch->unit,
                     &scratch->weights};
  int64_t offset = 0;
  for (int i = 0; i < 11; ++i) {
    *parts[i] = data == nullptr ? nullptr : data + offset;
    offset += round_up(sizes[i], kColumns);
  }
  return offset;
}

// Rows [first_row, first_row + num_rows) of a span and a cache head. It is large and not cleared: begin() fills it in.
struct Work {
  const AttentionArgs& args;
  const SpanView& span;
  const int64_t head, group, first_row, num_rows;
  const uint8_t* const next;  // what the thread reads after this work, or null
  const Scratch scratch;
  // What each query sees of the cache (in a tree: of its own chain), and of the tile at hand.
  int64_t position[kMaxRows];
  int64_t together;  // the first of the rows that go through the tile
  Range rows[kMaxRows], in_tile[kMaxRows];

  Work(const AttentionArgs& args, const SpanView& span, int64_t head, Range all, const uint8_t* next,
       const Scratch& scratch)
      : args(args), span(span), head(head), group(args.num_heads / args.cache.num_heads), first_row(all.begin),
        num_rows(all.end - all.begin), next(next), scratch(scratch) {}

  // Calls visit with each row, its token and its query head.
  template <typename Visit>
  void for_rows(const Visit& visit) const {
    int64_t at = token(0), h = query_head(0);
    for (int64_t row = 0; row < num_rows; ++row) {
      visit(row, at, h);
      if (++h < (head + 1) * group) continue;
      h -= group;
      ++at;
    }
  }
  int64_t token(int64_t row) const { return span.start + span.before + (first_row + row) / group; }
  int64_t query_head(int64_t row) const { return head * group + (first_row + row) % group; }
  float* scores(int64_t row) const { return scratch.scores + (row - together) * kTile; }
  uint16_t* weights(int64_t row) const {
    return reinterpret_cast<uint16_t*>(scratch.weights) + (row - together) * kTile;
  }
  uint16_t* half_query(int64_t row) const {
    return reinterpret_cast<uint16_t*>(scratch.queries) + row * half_query_stride(args);
  }
  const uint8_t* block(int64_t index) const {
    return args.cache.data + span.blocks[index] * args.cache.block_stride + head * args.cache.head_stride;
  }
  // Rows that are multiplied together: whole tokens, where a product has room, since these see the same.
  int64_t step() const { return group <= kQueries ? kQueries / group * group : kQueries; }
};

// The first row of the cache that a token at this position sees.
static inline int64_t first_seen(const AttentionArgs& args, int64_t position) {
  int64_t low = args.window != 0 ? larger(0, position - args.window + 1) : 0;
  if (args.chunk != 0) low = larger(low, position / args.chunk * args.chunk);
  return low;
}

// Fills in what each row of the work starts from.
static inline void begin(Work& work, bool has_tree) {
  const AttentionArgs& args = work.args;
  const int64_t key_dim = args.cache.key_dim;
  const float scale = args.softcap != 0 ? args.scale / args.softcap : args.scale;
  work.for_rows([&](int64_t row, int64_t token, int64_t head) {
    const float* q = args.q + (token - work.span.shift) * args.q_stride + head * key_dim;
    float* query = work.scratch.queries + row * query_stride(args);
    if (!multiplies_halves(args)) {
      for (int64_t d = 0; d < key_dim; ++d) query[d] = q[d] * scale;
    } else if constexpr (kHasHalfUnit) {
      work.scratch.unit[row] = round_query<HalfUnit>(q, key_dim, scale, work.half_query(row));
    }
    int64_t depth = token - work.span.start;
    if (has_tree) {
      depth = 0;
      for (int64_t up = args.parents[token]; up >= 0; up = args.parents[up]) ++depth;
    }
    const int64_t position = has_tree ? args.positions[token] : work.span.first + depth;
    work.position[row] = position;
    work.rows[row] = {first_seen(args, position), work.span.first + depth + 1};
    // A sink is a score that was there before all others and has no value.
    work.scratch.top[row] = args.sinks != nullptr ? args.sinks[head] : -kInfinity;
    work.scratch.total[row] = args.sinks != nullptr ? 1.0f : 0.0f;
  });
  const int64_t num_sums = work.num_rows * value_stride(args.cache.value_dim);
  std::memset(work.scratch.sums, 0, static_cast<size_t>(num_sums) * sizeof(float));
}

// Writes the results of all rows of the work.
static inline void finish(const Work& work) {
  const AttentionArgs& args = work.args;
  const int64_t value_dim = args.cache.value_dim, stride = value_stride(value_dim);
  work.for_rows([&](int64_t row, int64_t token, int64_t head) {
    float* out = args.out + (token - work.span.shift) * args.out_stride + head * value_dim;
    const float* sums = work.scratch.sums + row * stride;
    const float factor = 1.0f / work.scratch.total[row];
    for (int64_t e = 0; e < value_dim; ++e) out[e] = sums[e] * factor;
  });
}

}  // namespace qeff::QEFF_ISA
