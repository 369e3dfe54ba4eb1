"""Attention of many queries: a program takes a tile of one sequence's tokens and one kv head.

The query heads of the kv head are worked on together, so a tile of 128 queries is 32 tokens of
four heads. Tiles of keys that every query of the program sees whole need no mask.
"""

from __future__ import annotations

import triton
import triton.language as tl

from qeff.backends.cuda.session.kernels.cache_rows import load_rows
from qeff.backends.cuda.session.kernels.scores import (
    NOTHING,
    bound,
    finished,
    folded,
    lowest_position,
    scored,
    tile_rows,
)
from qeff.backends.cuda.session.launch import release, wait


@triton.jit
def _find(starts, num_spans, wanted, least, TOKENS: tl.constexpr):
    """The span of tile ``wanted`` and the tile's number in it; a span of -1: there is none.

    Spans of fewer than ``least`` tokens have no tiles.
    """
    span = 0
    before = 0
    skipped = 0
    for base in range(0, bound(num_spans), 128):
        i = base + tl.arange(0, 128)
        exists = i < num_spans
        length = tl.load(starts + i + 1, mask=exists, other=0)
        length -= tl.load(starts + i, mask=exists, other=0)
        count = tl.where(length >= least, (length + (TOKENS - 1)) // TOKENS, 0)
        ends = before + tl.cumsum(count, 0)
        is_before = exists & (ends <= wanted)
        span += tl.sum(is_before.to(tl.int32), 0)
        skipped += tl.sum(tl.where(is_before, count, 0), 0)
        before += tl.sum(count, 0)
    return tl.where(wanted < before, span, -1), wanted - skipped


@triton.jit(do_not_specialize=["num_spans", "table_stride", "words", "window", "chunk", "least"])
def attend_many(
    q, q_token, q_head, out, keys, key_scales, values, value_scales,
    positions, owners, starts, num_spans, firsts, tables, table_stride, rows, ancestors, words,
    sinks, slopes, scale, softcap, window, chunk, least,
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, KEY_PAD: tl.constexpr, VALUE_PAD: tl.constexpr,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, QUERIES: tl.constexpr,
    PARTS: tl.constexpr, BLOCK_LEN: tl.constexpr, TILE: tl.constexpr, FORMAT: tl.constexpr,
    DOT: tl.constexpr, BY_ROW: tl.constexpr, TREE: tl.constexpr, BOUNDED: tl.constexpr,
    CAPPED: tl.constexpr, SINK: tl.constexpr, SLOPED: tl.constexpr, STAGES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Grid: (kv heads * parts of their groups, tiles of queries or more)."""
    release(PDL)
    TOKENS: tl.constexpr = QUERIES // GROUP_PAD
    head = tl.program_id(0) // PARTS
    i = tl.arange(0, QUERIES)
    # The last tiles of a sequence see the most rows and come first.
    wanted = tl.num_programs(1) - 1 - tl.program_id(1)
    if BY_ROW:
        # A tile for each row, of which only the first token counts.
        asking = tl.load(rows + wanted)
        span = tl.load(owners + asking)
        start = tl.load(starts + span)
        skipped = (asking - start).to(tl.int32)
        is_query = i < GROUP_PAD
    else:
        span, tile = _find(starts, num_spans, wanted, least, TOKENS)
        if span < 0:
            return
        start = tl.load(starts + span)
        skipped = tile * TOKENS
        is_query = i >= 0
    length = tl.load(starts + span + 1) - start
    first = tl.load(firsts + span)
    table = tables + span.to(tl.int64) * table_stride
    nth = skipped + i // GROUP_PAD  # number of the token in its span
    g = tl.program_id(0) % PARTS * GROUP_PAD + i % GROUP_PAD  # place in the group of the kv head
    query_head = head * GROUP + g
    is_query = is_query & (nth < length) & (g < GROUP)
    token = (start + nth).to(tl.int64)
    place = token  # of the query among the queries
    if BY_ROW:
        place = token - asking + wanted
    position = tl.load(positions + token, mask=is_query, other=0)
    low = lowest_position(position, window, chunk)
    d = tl.arange(0, KEY_PAD)
    e = tl.arange(0, VALUE_PAD)
    wait(PDL)
    query = tl.load(
        q + (place * q_token + query_head * q_head)[:, None] + d[None, :],
        mask=is_query[:, None] & (d < KEY_DIM)[None, :], other=0.0,
    ).to(DOT)  # fmt: skip
    slope = tl.zeros([QUERIES], tl.float32)
    if SLOPED:
        slope = tl.load(slopes + query_head, mask=is_query, other=0.0).to(tl.float32)
    if TREE:
        high = first + length
        whole_end = first // TILE
    else:
        high = first + tl.minimum(skipped + TOKENS, length)
        whole_end = (first + skipped + 1) // TILE
    end = tl.cdiv(high, TILE)
    begin = 0
    whole_begin = 0
    if BOUNDED:
        begin = tl.min(tl.where(is_query, low, 2147483647), 0) // TILE
        whole_begin = tl.minimum(tl.cdiv(tl.max(tl.where(is_query, low, 0), 0), TILE), end)
    whole_end = tl.maximum(whole_end, whole_begin)

    top = tl.full([QUERIES], NOTHING, tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    mix = tl.zeros([QUERIES, VALUE_PAD], tl.float32)
    # Phase 0: tiles that begin before some query's window; 1: tiles seen whole; 2: the last ones.
    for phase in tl.static_range(0 if BOUNDED else 1, 3):
        if phase == 0:
            its_begin = begin
            its_end = whole_begin
        elif phase == 1:
            its_begin = whole_begin
            its_end = whole_end
        else:
            its_begin = whole_end
            its_end = end
        for t in tl.range(bound(its_begin), bound(its_end), num_stages=STAGES):
            j = t * TILE + tl.arange(0, TILE)
            fits = j < high
            at = tile_rows(table, t, j, fits, head, KV_HEADS, BLOCK_LEN, TILE)
            there = fits if phase != 1 else None
            kt = load_rows(keys, key_scales, at, d, there, KEY_DIM, FORMAT, DOT)
            key_position = j[None, :]
            if phase != 1:
                if TREE:
                    own = (j - first)[None, :]
                    is_own = fits[None, :] & (own >= 0)
                    key_position = tl.load(positions + start + own, mask=is_own, other=0)
                    key_position = tl.where(is_own, key_position, j[None, :])
                    word = tl.load(
                        ancestors + token[:, None] * words + own // 64,
                        mask=is_own & is_query[:, None], other=0,
                    )  # fmt: skip
                    is_ancestor = ((word >> (own % 64).to(tl.int64)) & 1) != 0
                    seen = fits[None, :] & ((own < 0) | is_ancestor)
                else:
                    seen = j[None, :] <= (first + nth)[:, None]
                if BOUNDED:
                    seen = seen & (key_position >= low[:, None])
            distance = key_position - position[:, None]
            scores = scored(query, kt, scale, softcap, slope, distance, CAPPED, SLOPED)
            if phase != 1:
                scores = tl.where(seen, scores, float("-inf"))
            vt = load_rows(values, value_scales, at, e, there, VALUE_DIM, FORMAT, DOT)
            top, total, mix = folded(scores, vt, top, total, mix, scale, CAPPED or SLOPED)

    answer = finished(top, total, mix, sinks, query_head, is_query, SINK)
    places = (place * (KV_HEADS * GROUP) + query_head) * VALUE_DIM
    tl.store(
        out + places[:, None] + e[None, :], answer.to(out.dtype.element_ty),
        mask=is_query[:, None] & (e < VALUE_DIM)[None, :],
    )  # fmt: skip
