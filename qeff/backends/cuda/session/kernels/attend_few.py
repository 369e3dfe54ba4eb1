"""Attention of few queries: a program takes one token, one kv head and a part of its rows.

The query heads of a kv head are worked on together. The parts of a token are put together by the
program that comes last; the counter that finds it is zero again afterwards. Where each sequence
has one token, the same launch also rotates it and writes its keys and values.
"""

from __future__ import annotations

import triton
import triton.language as tl

from qeff.backends.cuda.session.kernels.cache_rows import angles, load_rows, store_rows, turned
from qeff.backends.cuda.session.kernels.scores import (
    NOTHING,
    bent,
    bound,
    finished,
    folded,
    lowest_position,
    scored,
    tile_rows,
)
from qeff.backends.cuda.session.launch import release, wait

# What the third axis of the grid counts.
TOKENS = 0  # queries: tokens, or the rows asked for
SPANS = 1  # spans; those of more than one token are left out
FUSED = 2  # spans, which have one token each; it is rotated and written here

_SPANS: tl.constexpr = tl.constexpr(SPANS)
_FUSED: tl.constexpr = tl.constexpr(FUSED)


@triton.jit
def _joined(
    partials, stats, unit, active,
    GROUP_PAD: tl.constexpr, VALUE_PAD: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """What all active parts of a unit found: largest score, sum of weights, weighted values."""
    part = tl.arange(0, SPLITS)
    g = tl.arange(0, GROUP_PAD)
    e = tl.arange(0, VALUE_PAD)
    at = stats + (unit * SPLITS + part)[:, None] * (2 * GROUP_PAD) + g[None, :]
    is_active = (part < active)[:, None]
    tops = tl.load(at, mask=is_active, other=NOTHING, cache_modifier=".cg")
    totals = tl.load(at + GROUP_PAD, mask=is_active, other=0.0, cache_modifier=".cg")
    top = tl.max(tops, 0)
    total = tl.sum(totals * tl.exp2(tops - top[None, :]), 0)
    mix = tl.zeros([GROUP_PAD, VALUE_PAD], tl.float32)
    # Several parts at once: their loads wait for memory together, and fit in registers.
    CHUNK: tl.constexpr = min(SPLITS, 8)
    for i in tl.static_range(0, SPLITS, CHUNK):
        chunk = i + tl.arange(0, CHUNK)
        place = (unit * SPLITS + chunk)[:, None] * GROUP_PAD + g[None, :]
        its_active = (chunk < active)[:, None]
        its_tops = tl.load(
            stats + (unit * SPLITS + chunk)[:, None] * (2 * GROUP_PAD) + g[None, :],
            mask=its_active, other=NOTHING, cache_modifier=".cg",
        )  # fmt: skip
        its_mix = tl.load(
            partials + place[:, :, None] * VALUE_PAD + e[None, None, :],
            mask=its_active[:, :, None], other=0.0, cache_modifier=".cg",
        )  # fmt: skip
        mix += tl.sum(its_mix * tl.exp2(its_tops - top[None, :])[:, :, None], 0)
    return top, total, mix


@triton.jit(do_not_specialize=["table_stride", "words", "window", "chunk"])
def attend_few(
    q, q_token, q_head, k, k_token, k_head, v, v_token, v_head, out,
    keys, key_scales, values, value_scales, partials, stats, counters,
    positions, owners, slots, starts, firsts, tables, table_stride, rows, ancestors, words,
    cos, sin, q_gain, k_gain, eps, sinks, slopes, scale, softcap, window, chunk,
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, KEY_PAD: tl.constexpr, VALUE_PAD: tl.constexpr,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, QUERIES: tl.constexpr,
    PARTS: tl.constexpr, BLOCK_LEN: tl.constexpr, TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    LEAST_TILES: tl.constexpr, FORMAT: tl.constexpr, DOT: tl.constexpr, MODE: tl.constexpr,
    BY_ROW: tl.constexpr, TREE: tl.constexpr, CAPPED: tl.constexpr, SINK: tl.constexpr,
    SLOPED: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr, Q_NORM: tl.constexpr,
    K_NORM: tl.constexpr, EARLY: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid: (kv heads * parts of their groups, splits, tokens or rows or spans)."""
    release(PDL)
    head = tl.program_id(0) // PARTS
    g = tl.program_id(0) % PARTS * GROUP_PAD + tl.arange(0, QUERIES)  # place in the head's group
    few = tl.program_id(0) % PARTS * GROUP_PAD + tl.arange(0, GROUP_PAD)
    is_head = (tl.arange(0, QUERIES) < GROUP_PAD) & (g < GROUP)
    split = tl.program_id(1)
    index = tl.program_id(2).to(tl.int64)
    unit = index * (KV_HEADS * PARTS) + tl.program_id(0)
    token = index
    if MODE == _FUSED:
        span = index
    elif MODE == _SPANS:
        span = index
        token = tl.load(starts + span).to(tl.int64)
        if tl.load(starts + span + 1) - token != 1:
            wait(PDL)  # a launch that waits nowhere would let the next one overtake those before
            return
        index = token
    else:
        if BY_ROW:
            token = tl.load(rows + index)
        span = tl.load(owners + token).to(tl.int64)
    # Nothing that is read here is written by a kernel of the step.
    position = tl.load(positions + token)
    low = lowest_position(position, window, chunk)
    high = tl.load(slots + token)  # one behind the last row that is read from the cache
    first = high
    start = token
    if TREE:
        start = tl.load(starts + span).to(tl.int64)
        first = tl.load(firsts + span)
        high = first + (tl.load(starts + span + 1) - start).to(tl.int32)
    elif MODE != _FUSED:
        high += 1
    begin = low // TILE
    num_tiles = tl.maximum(tl.cdiv(high, TILE) - begin, 0)
    length = tl.maximum(tl.cdiv(num_tiles, SPLITS), LEAST_TILES)
    active = tl.maximum(tl.cdiv(num_tiles, length), 1)
    if split >= active:
        return
    begin += split * length
    end = tl.minimum(begin + length, tl.cdiv(high, TILE))

    table = tables + span * table_stride
    d = tl.arange(0, KEY_PAD)
    e = tl.arange(0, VALUE_PAD)
    j = begin * TILE + tl.arange(0, TILE)
    if EARLY:
        # Rows of earlier steps are read while the kernel before this one still works.
        seen = (j >= low) & (j < high)
        at = tile_rows(table, begin, j, seen, head, KV_HEADS, BLOCK_LEN, TILE)
        k0 = load_rows(keys, key_scales, at, d, seen, KEY_DIM, FORMAT, DOT)
        v0 = load_rows(values, value_scales, at, e, seen, VALUE_DIM, FORMAT, DOT)
    slope = tl.zeros([QUERIES], tl.float32)
    if SLOPED:
        slope = tl.load(slopes + head * GROUP + g, mask=is_head, other=0.0).to(tl.float32)
    heads = (head * GROUP + g) * q_head
    top = tl.full([QUERIES], NOTHING, tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    mix = tl.zeros([QUERIES, VALUE_PAD], tl.float32)
    if MODE == _FUSED:
        # The last part begins with the token itself, whose key and value arrive with its queries.
        is_last = split == active - 1
        one = tl.arange(0, 1)
        block = tl.load(table + high // BLOCK_LEN).to(tl.int64)
        row = (block * KV_HEADS + head) * BLOCK_LEN + high % BLOCK_LEN + one
        c, s = angles(cos, sin, position, d, HALF, INTERLEAVED)
        wait(PDL)
        own_value = tl.load(
            v + token * v_token + head * v_head + one[:, None] + e[None, :],
            mask=(e < VALUE_DIM)[None, :], other=0.0,
        ).to(tl.float32)  # fmt: skip
        own_key = turned(
            k + token * k_token, head * k_head + one, one == 0, d, c, s, k_gain, eps,
            KEY_DIM, HALF, INTERLEAVED, K_NORM,
        )  # fmt: skip
        query = turned(
            q + token * q_token, heads, is_head, d, c, s, q_gain, eps,
            KEY_DIM, HALF, INTERLEAVED, Q_NORM,
        ).to(DOT)  # fmt: skip
        # They are as a reader of the cache will find them.
        writes = ((one == tl.program_id(0) % PARTS) & is_last) != 0
        own_key = store_rows(keys, key_scales, row, d, own_key, writes, KEY_DIM, FORMAT)
        own_value = store_rows(values, value_scales, row, e, own_value, writes, VALUE_DIM, FORMAT)
        own = tl.sum(query.to(tl.float32) * own_key, 1) * scale
        if CAPPED:
            own = bent(own, softcap)
        top = tl.where(is_last, own, top)
        total = tl.where(is_last, total + 1.0, total)
        mix = tl.where(is_last, mix + own_value, mix)
    else:
        wait(PDL)
        query = tl.load(
            q + index * q_token + heads[:, None] + d[None, :],
            mask=is_head[:, None] & (d < KEY_DIM)[None, :], other=0.0,
        ).to(DOT)  # fmt: skip
    if EARLY:
        seen = (j >= low) & (j < high)
        distance = (j - position)[None, :]
        scores = scored(query, k0, scale, softcap, slope, distance, CAPPED, SLOPED)
        scores = tl.where(seen[None, :], scores, float("-inf"))
        top, total, mix = folded(scores, v0, top, total, mix, scale, CAPPED or SLOPED)
        begin += 1
    for tile in tl.range(bound(begin), bound(end), num_stages=STAGES):
        j = tile * TILE + tl.arange(0, TILE)
        seen = (j >= low) & (j < high)
        at = tile_rows(table, tile, j, seen, head, KV_HEADS, BLOCK_LEN, TILE)
        kt = load_rows(keys, key_scales, at, d, seen, KEY_DIM, FORMAT, DOT)
        key_position = j
        if TREE:
            own = j - first
            is_own = seen & (own >= 0)
            key_position = tl.load(positions + start + own, mask=is_own, other=0)
            word = tl.load(ancestors + token * words + own // 64, mask=is_own, other=0)
            is_ancestor = ((word >> (own % 64).to(tl.int64)) & 1) != 0
            key_position = tl.where(is_own, key_position, j)
            seen = seen & ((own < 0) | is_ancestor) & (key_position >= low)
        distance = (key_position - position)[None, :]
        scores = scored(query, kt, scale, softcap, slope, distance, CAPPED, SLOPED)
        scores = tl.where(seen[None, :], scores, float("-inf"))
        vt = load_rows(values, value_scales, at, e, j < high, VALUE_DIM, FORMAT, DOT)
        top, total, mix = folded(scores, vt, top, total, mix, scale, CAPPED or SLOPED)

    places = out + (index * KV_HEADS * GROUP + head * GROUP) * VALUE_DIM
    if active == 1:
        answer = finished(top, total, mix, sinks, head * GROUP + g, is_head, SINK)
        tl.store(
            places + g[:, None] * VALUE_DIM + e[None, :], answer.to(out.dtype.element_ty),
            mask=is_head[:, None] & (e < VALUE_DIM)[None, :],
        )  # fmt: skip
    else:
        part = unit * SPLITS + split
        place = tl.arange(0, QUERIES)
        kept = place < GROUP_PAD
        tl.store(stats + part * (2 * GROUP_PAD) + place, top, mask=kept)
        tl.store(stats + part * (2 * GROUP_PAD) + GROUP_PAD + place, total, mask=kept)
        tl.store(
            partials + (part * GROUP_PAD + place)[:, None] * VALUE_PAD + e[None, :], mix,
            mask=kept[:, None] & (e >= 0)[None, :],
        )  # fmt: skip
        tl.debug_barrier()
        arrived = tl.atomic_add(counters + unit, 1, sem="acq_rel", scope="gpu")
        if arrived == active - 1:
            top2, total2, mix2 = _joined(
                partials, stats, unit, active, GROUP_PAD, VALUE_PAD, SPLITS
            )
            answer = finished(top2, total2, mix2, sinks, head * GROUP + few, few < GROUP, SINK)
            tl.store(
                places + few[:, None] * VALUE_DIM + e[None, :], answer.to(out.dtype.element_ty),
                mask=(few < GROUP)[:, None] & (e < VALUE_DIM)[None, :],
            )  # fmt: skip
            tl.store(counters + unit, 0)
