// Tokens of a tree, whose ancestors stand in rows of the cache whose numbers are not their positions.
//
// Tiles that reach into the step are gathered for each token, ancestor of depth i at row first + i, which is where a
// plain chain has it: a branch of a tree gives the bits that the same tokens give one after the other.
//
// Included by attention.cc alone, after the SIMD layer.
#pragma once

#include "kernels/attention_tile.h"

namespace qeff::QEFF_ISA {

// Whether the tokens of a span follow each other in one chain, as they do where there are no parents.
static inline bool is_chain(const AttentionArgs& args, const SpanView& span) {
  if (args.parents == nullptr) return true;
  for (int64_t t = span.start; t < span.stop; ++t) {
    if (args.parents[t] != (t == span.start ? -1 : t - 1)) return false;
    if (args.positions[t] != span.first + (t - span.start)) return false;
  }
  return true;
}

static inline bool sees(const AttentionArgs& args, int64_t position, int64_t key_position) {
  if (args.window != 0 && key_position <= position - args.window) return false;
  return args.chunk == 0 || key_position / args.chunk == position / args.chunk;
}

// A tile of a chain.
struct Gathered {
  int64_t base;
  const int64_t* source;  // [kTile] rows of the cache
  const float* offsets;   // [kTile] positions less base
  uint64_t seen;          // by the token, one bit each
  Range hull;             // of those
};

// The same as halves: blocks of scratch are laid out as those of the cache.
template <class Unit>
static inline void add_gathered_halves(Work& work, const Gathered& chain, Range rows) {
  const CacheView& cache = work.args.cache;
  const int64_t stride = value_stride(cache.value_dim);
  Tile<uint16_t> tile = {.keys = {}, .values = {}, .are_values_joined = false, .after_keys = {}, .after_values = {},
                         .offsets = chain.offsets, .base = chain.base, .holes = 0};
  for (int64_t b = 0; b < kTileBlocks; ++b) {
    tile.keys[b] = reinterpret_cast<uint16_t*>(work.scratch.keys) + b * cache.key_dim * kBlock;
    tile.values[b] = reinterpret_cast<uint16_t*>(work.scratch.values) + b * kBlock * stride;
  }
  for (int64_t i = chain.hull.begin; i < chain.hull.end; ++i) {
    uint16_t* key = reinterpret_cast<uint16_t*>(work.scratch.keys) + i / kBlock * cache.key_dim * kBlock + i % kBlock;
    uint16_t* value = reinterpret_cast<uint16_t*>(work.scratch.values) + i * stride;
    if ((chain.seen >> i & 1u) == 0) {
      // It has a weight of zero and must not hold a NaN.
      tile.holes |= uint64_t{1} << i;
      std::memset(value, 0, static_cast<size_t>(stride) * sizeof(uint16_t));
      continue;
    }
    const uint8_t* block = work.block(chain.source[i] / kBlock);
    const auto* keys = reinterpret_cast<const uint16_t*>(block) + chain.source[i] % kBlock;
    for (int64_t d = 0; d < cache.key_dim; ++d) key[d * kBlock] = keys[d * kBlock];
    const auto* values = reinterpret_cast<const uint16_t*>(block + key_bytes(cache.format, cache.key_dim));
    std::memcpy(value, values + chain.source[i] % kBlock * stride, static_cast<size_t>(stride) * sizeof(uint16_t));
  }
  add_half_tile<Unit>(work, tile, rows);
}

// The tile at base of the chain of one token, for the work's rows [first, last), all of that token.
static inline void add_gathered(Work& work, int64_t base, Range rows) {
  const CacheView& cache = work.args.cache;
  const SpanView& span = work.span;
  const int64_t position = work.position[rows.begin], stride = value_stride(cache.value_dim);
  // The token at depth d of the chain is row span.first + d of it: walk from the token upwards.
  int64_t source[kTile];
  Offsets offsets = kOffsets;
  uint64_t seen = 0;
  for (int64_t i = 0; i < kTile; ++i) {
    source[i] = base + i;
    if (base + i < span.first && sees(work.args, position, base + i)) seen |= uint64_t{1} << i;
  }
  int64_t place = work.rows[rows.begin].end - 1 - base;
  for (int64_t ancestor = work.token(rows.begin); ancestor >= 0 && place >= 0; --place) {
    if (place < kTile) {
      const int64_t key_position = work.args.positions[ancestor];
      source[place] = span.first + (ancestor - span.start);
      offsets.of[place] = static_cast<float>(key_position - base);
      if (sees(work.args, position, key_position)) seen |= uint64_t{1} << place;
    }
    ancestor = work.args.parents[ancestor];
  }
  if (seen == 0) return;
  const Range hull = {__builtin_ctzll(seen), kTile - __builtin_clzll(seen)};
  for (int64_t row = rows.begin; row < rows.end; ++row) work.in_tile[row] = hull;
  if (multiplies_halves(work.args)) {
    if constexpr (kHasHalfUnit) add_gathered_halves<HalfUnit>(work, {base, source, offsets.of, seen, hull}, rows);
    return;
  }
  Tile<float> tile = {.keys = {}, .values = {}, .are_values_joined = true, .after_keys = {}, .after_values = {},
                      .offsets = offsets.of, .base = base, .holes = 0};
  for (int64_t b = 0; b < kTileBlocks; ++b) {
    tile.keys[b] = work.scratch.keys + b * cache.key_dim * kBlock;
    tile.values[b] = work.scratch.values + b * kBlock * stride;
  }
  for (int64_t i = hull.begin; i < hull.end; ++i) {
    float* value = work.scratch.values + i * stride;
    if ((seen >> i & 1u) == 0) {
      // It has a weight of zero and must not hold a NaN.
      tile.holes |= uint64_t{1} << i;
      std::memset(value, 0, static_cast<size_t>(stride) * sizeof(float));
      continue;
    }
    const uint8_t* block = work.block(source[i] / kBlock);
    unpack_key_row(cache.format, cache.key_dim, block, source[i] % kBlock, i % kBlock,
                   work.scratch.keys + i / kBlock * cache.key_dim * kBlock);
    unpack_value_row(cache.format, cache.key_dim, cache.value_dim, block, source[i] % kBlock, value);
  }
  add_tile(work, tile, rows);
}

// All tiles from base on, for each token of the work by itself.
static inline void add_chains(Work& work, int64_t base) {
  for (int64_t first = 0, last; first < work.num_rows; first = last) {
    last = first + 1;
    while (last < work.num_rows && work.token(last) == work.token(first)) ++last;
    for (int64_t at = base; at < work.rows[first].end; at += kTile) add_gathered(work, at, {first, last});
  }
}

}  // namespace qeff::QEFF_ISA
