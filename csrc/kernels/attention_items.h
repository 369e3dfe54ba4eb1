// How the queries of a step are cut into work items.
//
// A step whose spans are all short, such as one of decoding, is cut into even shares, a few for each thread; a share
// is a stretch of the rows of all heads of all spans, one after the other. The rows of a head read the same keys and
// values, so that a cut between heads is better than one within. Where a span is long, an item is as many of its rows
// as share an unpacked tile, or all rows of a short span and one head.
//
// Included by attention.cc alone, after the SIMD layer.
#pragma once

#include "kernels/attention_work.h"

namespace qeff::QEFF_ISA {

// Rows of a span and a cache head.
struct Piece {
  int64_t span, head;
  Range rows;
};

static inline int64_t num_attending(const SpanView& span) { return span.stop - span.start - span.before - span.behind; }

static inline int64_t rows_of(const AttentionArgs& args, const SpanView& span) {
  return num_attending(span) * (args.num_heads / args.cache.num_heads);
}

static inline bool is_short(const AttentionArgs& args, const SpanView& span) {
  return rows_of(args, span) <= kTogether;
}

// Rows of an item where a span is long: the more, the fewer times a tile is unpacked; but there should be several items
// for each thread.
static inline int64_t unit_rows(const AttentionArgs& args) {
  int64_t num_rows = 0;
  for (int64_t s = 0; s < args.num_spans; ++s) num_rows += rows_of(args, args.spans[s]) * args.cache.num_heads;
  const int64_t even = round_up(num_rows / (6 * larger(1, args.num_threads)), kTogether);
  return smaller(larger(even, 2 * kTogether), max_rows(args));
}

// What a row of a short span takes, in tiles: those that it sees and what goes before and after.
static inline int64_t cost_of_row(const AttentionArgs& args, const SpanView& span) {
  const int64_t position = span.first + (span.stop - span.start) - span.behind - 1;
  return (position - first_seen(args, position)) / kTile + 2;
}

// The shares of a step of short spans.
struct Shares {
  int64_t num;   // 0: a span is long
  int64_t cost;  // of all rows
};

static inline Shares shares_of(const AttentionArgs& args) {
  Shares shares = {0, 0};
  int64_t num_rows = 0, num_tokens = 0;
  for (int64_t s = 0; s < args.num_spans; ++s) {
    const SpanView& span = args.spans[s];
    if (!is_short(args, span)) return {0, 0};
    const int64_t rows = rows_of(args, span) * args.cache.num_heads;
    num_rows += rows;
    num_tokens += num_attending(span);
    shares.cost += rows * cost_of_row(args, span);
  }
  // One token: each thread begins at once and should be done at once. More of them: threads help each other, with
  // shares of two heads or more.
  const int64_t num_threads = larger(1, args.num_threads), num_heads = args.num_spans * args.cache.num_heads;
  const int64_t wanted = num_tokens == 1 ? num_threads : larger(num_threads, smaller(4 * num_threads, num_heads / 2));
  shares.num = smaller(num_rows, wanted);
  return shares;
}

// Where in the rows of a head, which begin at cost `at`, a share ends that ends at cost `end`.
static inline int64_t cut(const Shares& shares, int64_t at, int64_t num_rows, int64_t cost, int64_t end) {
  if (end <= at) return 0;
  if (end >= at + num_rows * cost) return num_rows;
  const int64_t row = (end - at + cost / 2) / cost;
  // Large shares end between heads.
  const bool is_large = shares.cost >= 2 * shares.num * num_rows * cost;
  return !is_large ? row : 2 * row < num_rows ? 0 : num_rows;
}

template <typename Visit>
static inline void for_shares(const AttentionArgs& args, const Shares& shares, int64_t first, int64_t last,
                              const Visit& visit) {
  const int64_t begin = shares.cost * first / shares.num, end = shares.cost * last / shares.num;
  int64_t at = 0;
  for (int64_t s = 0; s < args.num_spans && at < end; ++s) {
    const int64_t num_rows = rows_of(args, args.spans[s]), cost = cost_of_row(args, args.spans[s]);
    const int64_t all = num_rows * cost;
    if (at + all * args.cache.num_heads <= begin) {
      at += all * args.cache.num_heads;
      continue;
    }
    for (int64_t head = 0; head < args.cache.num_heads; ++head, at += all) {
      const Range rows = {cut(shares, at, num_rows, cost, begin), cut(shares, at, num_rows, cost, end)};
      if (!rows.is_empty()) visit(Piece{s, head, rows});
    }
  }
}

template <typename Visit>
static inline void for_units(const AttentionArgs& args, int64_t first, int64_t last, const Visit& visit) {
  const int64_t most = unit_rows(args);
  int64_t item = 0;  // the first of the span
  for (int64_t s = 0; s < args.num_spans && item < last; ++s) {
    const int64_t num_rows = rows_of(args, args.spans[s]);
    const int64_t num_units = ceil_div(num_rows, most), end = item + num_units * args.cache.num_heads;
    for (int64_t next = larger(first, item); next < smaller(last, end); ++next) {
      // Early units see few keys and late ones many: in turn, so that every stretch of items costs the same.
      const int64_t place = (next - item) % num_units;
      const int64_t unit = place % 2 == 0 ? place / 2 : num_units - 1 - place / 2;
      visit(Piece{s, (next - item) / num_units, {unit * most, smaller(num_rows, (unit + 1) * most)}});
    }
    item = end;
  }
}

static inline int64_t num_items(const AttentionArgs& args) {
  const Shares shares = shares_of(args);
  if (shares.num != 0) return shares.num;
  const int64_t most = unit_rows(args);
  int64_t num = 0;
  for (int64_t s = 0; s < args.num_spans; ++s) {
    num += ceil_div(rows_of(args, args.spans[s]), most) * args.cache.num_heads;
  }
  return num;
}

// Calls visit for each piece of items [first, last), with the piece that follows or null.
template <typename Visit>
static inline void for_pieces(const AttentionArgs& args, int64_t first, int64_t last, const Visit& visit) {
  Piece waiting = {-1, 0, {0, 0}};
  const auto follow = [&](const Piece& piece) {
    if (waiting.span >= 0) visit(waiting, &piece);
    waiting = piece;
  };
  const Shares shares = shares_of(args);
  if (shares.num != 0) {
    for_shares(args, shares, first, last, follow);
  } else {
    for_units(args, first, last, follow);
  }
  if (waiting.span >= 0) visit(waiting, nullptr);
}

// The first block that a piece reads.
static inline const uint8_t* first_block(const AttentionArgs& args, const Piece& piece) {
  const SpanView& span = args.spans[piece.span];
  const int64_t token = span.before + piece.rows.begin / (args.num_heads / args.cache.num_heads);
  const int64_t block = first_seen(args, span.first + token) / kTile * kTileBlocks;
  return args.cache.data + span.blocks[block] * args.cache.block_stride + piece.head * args.cache.head_stride;
}

}  // namespace qeff::QEFF_ISA
