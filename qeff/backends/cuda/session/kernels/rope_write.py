"""Rotate queries and keys, and write keys and values into the paged cache.

A program takes one token and some of its heads: of the queries, of the keys or of the values.
Queries go into a buffer of their own. Queries may be those of some tokens alone, then keys and
values are written by another launch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from qeff.backends.cuda.session.kernels.cache_rows import angles, store_rows, turned
from qeff.backends.cuda.session.launch import release, wait


@triton.jit(do_not_specialize=["table_stride"])
def rope_write(
    q, q_token, q_head, q_out, k, k_token, k_head, v, v_token, v_head,
    keys, key_scales, values, value_scales,
    positions, owners, slots, tables, table_stride, rows,
    cos, sin, q_gain, k_gain, eps,
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, KEY_PAD: tl.constexpr, VALUE_PAD: tl.constexpr,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, TILE: tl.constexpr, BLOCK_LEN: tl.constexpr,
    FORMAT: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr,
    Q_NORM: tl.constexpr, K_NORM: tl.constexpr, BY_ROW: tl.constexpr,
    HAS_Q: tl.constexpr, HAS_KV: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid: (tokens or rows, tiles of query heads + 2 * tiles of kv heads, as far as wanted)."""
    release(PDL)
    index = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    token = index
    if BY_ROW:
        token = tl.load(rows + index)
    position = tl.load(positions + token)
    Q_TILES: tl.constexpr = (HEADS + TILE - 1) // TILE if HAS_Q else 0
    KV_TILES: tl.constexpr = (KV_HEADS + TILE - 1) // TILE
    head = tl.arange(0, TILE)
    d = tl.arange(0, KEY_PAD)
    if HAS_Q:  # noqa: SIM102 (known when compiled, the other is not)
        if part < Q_TILES:
            head += part * TILE
            c, s = angles(cos, sin, position, d, HALF, INTERLEAVED)
            wait(PDL)
            x = turned(
                q + index * q_token, head * q_head, head < HEADS, d, c, s, q_gain, eps,
                KEY_DIM, HALF, INTERLEAVED, Q_NORM,
            )  # fmt: skip
            tl.store(
                q_out + (index * HEADS + head)[:, None] * KEY_DIM + d[None, :],
                x.to(q_out.dtype.element_ty),
                mask=(head < HEADS)[:, None] & (d < KEY_DIM)[None, :],
            )
    if HAS_KV:  # noqa: SIM102 (as above)
        if part >= Q_TILES:
            slot = tl.load(slots + token)
            owner = tl.load(owners + token)
            block = tl.load(tables + owner * table_stride + slot // BLOCK_LEN).to(tl.int64)
            head = tl.arange(0, TILE) + (part - Q_TILES) % KV_TILES * TILE
            row = (block * KV_HEADS + head) * BLOCK_LEN + slot % BLOCK_LEN
            if part < Q_TILES + KV_TILES:
                c, s = angles(cos, sin, position, d, HALF, INTERLEAVED)
                wait(PDL)
                key = turned(
                    k + token * k_token, head * k_head, head < KV_HEADS, d, c, s, k_gain, eps,
                    KEY_DIM, HALF, INTERLEAVED, K_NORM,
                )  # fmt: skip
                store_rows(keys, key_scales, row, d, key, head < KV_HEADS, KEY_DIM, FORMAT)
            else:
                e = tl.arange(0, VALUE_PAD)
                wait(PDL)
                value = tl.load(
                    v + token * v_token + head[:, None] * v_head + e[None, :],
                    mask=(head < KV_HEADS)[:, None] & (e < VALUE_DIM)[None, :],
                    other=0.0,
                ).to(tl.float32)
                fits = head < KV_HEADS
                store_rows(values, value_scales, row, e, value, fits, VALUE_DIM, FORMAT)
