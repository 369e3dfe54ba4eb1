// Attention over a paged cache, one source for every instruction set.
//
// A work item is some rows of queries of one span and one cache head, or of several of them one after the other. A
// call goes over the cache in tiles of 64 rows (two blocks), keeping for each query the largest score, the sum of
// weights and the weighted sum of values so far.
#include "kernels/attention.h"

#include <cmath>
#include <cstring>

#include QEFF_SIMD_HEADER

#include "simd/math.h"

#include "kernels/attention_items.h"
#include "kernels/attention_tile.h"
#include "kernels/attention_tree.h"
#include "kernels/attention_work.h"

namespace qeff::QEFF_ISA {
namespace {

// So few rows of queries take f16 as it is; more of them share a tile that is unpacked once.
constexpr int64_t kFewRows = 2 * kQueries;

// ---- where a tile is read -------------------------------------------------------------------------------------

// As it lies in the cache, for products that fetch what comes after: keys, values, the next tile at next.
template <typename Element>
Tile<Element> direct_tile(const Work& work, int64_t base, Range blocks, bool has_few_rows, const uint8_t* next) {
  const int64_t offset = key_bytes(work.args.cache.format, work.args.cache.key_dim);
  Tile<Element> tile = {.keys = {}, .values = {}, .are_values_joined = false, .after_keys = {}, .after_values = {},
                        .offsets = kOffsets.of, .base = base, .holes = 0};
  const uint8_t* data[kTileBlocks] = {};
  for (int64_t b = blocks.begin; b < blocks.end; ++b) {
    data[b] = work.block(base / kBlock + b);
    tile.keys[b] = reinterpret_cast<const Element*>(data[b]);
    tile.values[b] = reinterpret_cast<const Element*>(data[b] + offset);
  }
  if (!has_few_rows) return tile;
  for (int64_t b = blocks.begin; b < blocks.end; ++b) {
    const bool is_last = b + 1 == blocks.end;
    tile.after_keys[b] = is_last ? data[blocks.begin] + offset : data[b + 1];
    tile.after_values[b] = is_last ? next : data[b + 1] + offset;
  }
  return tile;
}

// As it lies in the cache, for products of halves. While keys are multiplied, values are fetched, and then the keys of
// the next tile, at next.
[[maybe_unused]] Tile<uint16_t> half_tile(const Work& work, int64_t base, Range blocks, bool has_few_rows,
                                          const uint8_t* next) {
  const int64_t offset = key_bytes(CacheFormat::kF16, work.args.cache.key_dim);
  Tile<uint16_t> tile = {.keys = {}, .values = {}, .are_values_joined = false, .after_keys = {}, .after_values = {},
                         .offsets = kOffsets.of, .base = base, .holes = 0};
  for (int64_t b = blocks.begin; b < blocks.end; ++b) {
    const uint8_t* data = work.block(base / kBlock + b);
    tile.keys[b] = reinterpret_cast<const uint16_t*>(data);
    tile.values[b] = reinterpret_cast<const uint16_t*>(data + offset);
    if (has_few_rows) tile.after_keys[b] = data + offset;
  }
  if (has_few_rows) tile.after_values[0] = next;
  return tile;
}

// As floats in scratch; seen: the rows of the tile that any query sees.
Tile<float> unpacked_tile(const Work& work, int64_t base, Range seen) {
  const CacheView& cache = work.args.cache;
  const int64_t stride = value_stride(cache.value_dim);
  Tile<float> tile = {.keys = {}, .values = {}, .are_values_joined = true, .after_keys = {}, .after_values = {},
                      .offsets = kOffsets.of, .base = base, .holes = 0};
  const Range blocks = seen_blocks(seen);
  for (int64_t b = 0; b < kTileBlocks; ++b) {
    float* keys = work.scratch.keys + b * cache.key_dim * kBlock;
    tile.keys[b] = keys;
    tile.values[b] = work.scratch.values + b * kBlock * stride;
    if (b >= blocks.begin && b < blocks.end) {
      unpack_keys(cache.format, cache.key_dim, work.block(base / kBlock + b), keys);
    }
  }
  for (int64_t i = seen.begin; i < seen.end; ++i) {
    unpack_value_row(cache.format, cache.key_dim, cache.value_dim, work.block((base + i) / kBlock), i % kBlock,
                     work.scratch.values + i * stride);
  }
  return tile;
}

void prefetch(const uint8_t* data, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(data + i);
}

// The tile at base, whose rows have their numbers as positions, for all rows of the work that see it.
void add_plain(Work& work, int64_t base, const uint8_t* next) {
  Range rows = {work.num_rows, 0}, seen = {kTile, 0};
  for (int64_t row = 0; row < work.num_rows; ++row) {
    const Range in_tile = {larger(work.rows[row].begin - base, 0), smaller(work.rows[row].end - base, kTile)};
    work.in_tile[row] = in_tile;
    if (in_tile.is_empty()) continue;
    rows = {smaller(rows.begin, row), row + 1};
    seen = {smaller(seen.begin, in_tile.begin), larger(seen.end, in_tile.end)};
  }
  if (rows.is_empty()) return;
  const bool has_few_rows = rows.end - rows.begin <= kFewRows;
  const CacheFormat format = work.args.cache.format;
  if (multiplies_halves(work.args)) {
    if constexpr (kHasHalfUnit) {
      add_half_tile<HalfUnit>(work, half_tile(work, base, seen_blocks(seen), has_few_rows, next), rows);
    }
  } else if (format == CacheFormat::kF32) {
    add_tile(work, direct_tile<float>(work, base, seen_blocks(seen), has_few_rows, next), rows);
  } else if (format == CacheFormat::kF16 && has_few_rows) {
    add_tile(work, direct_tile<uint16_t>(work, base, seen_blocks(seen), true, next), rows);
  } else {
    add_tile(work, unpacked_tile(work, base, seen), rows);
  }
}

// ---- a call ---------------------------------------------------------------------------------------------------

void attend_rows(Work& work) {
  const CacheView& cache = work.args.cache;
  const bool has_tree = !is_chain(work.args, work.span);
  begin(work, has_tree);
  Range seen = {INT64_MAX, 0};
  for (int64_t row = 0; row < work.num_rows; ++row) {
    seen = {smaller(seen.begin, work.rows[row].begin), larger(seen.end, work.rows[row].end)};
  }
  // In a tree the positions before the step are rows; from the tile of its first token on, chains differ.
  const int64_t shared_end = has_tree ? work.span.first / kTile * kTile : seen.end;
  for (int64_t base = seen.begin / kTile * kTile; base < shared_end; base += kTile) {
    const bool is_last = base + kTile >= shared_end;
    // What is already there, where there is nothing more to fetch.
    const uint8_t* next = !is_last ? work.block(base / kBlock + kTileBlocks)
                                   : work.next != nullptr ? work.next : work.block(base / kBlock);
    // The last tile may be too short to fetch all that comes after.
    if (is_last && work.next != nullptr && work.num_rows <= kFewRows) {
      prefetch(work.next, key_bytes(cache.format, cache.key_dim));
    }
    add_plain(work, base, next);
  }
  if (has_tree) add_chains(work, shared_end);
  finish(work);
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

void attend(const AttentionArgs& args, int64_t first, int64_t last, void* memory) {
  Scratch scratch;
  lay_out(args, static_cast<float*>(memory), &scratch);
  for_pieces(args, first, last, [&](const Piece& piece, const Piece* next) {
    const uint8_t* following = next != nullptr ? first_block(args, *next) : nullptr;
    Work work(args, args.spans[piece.span], piece.head, piece.rows, following, scratch);
    attend_rows(work);
  });
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
