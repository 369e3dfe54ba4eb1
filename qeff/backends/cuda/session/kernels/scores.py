"""Attention over one tile of keys: scores, who sees whom, and the running softmax.

Scores are in units of log2, so that exp2 is enough. ``top``, ``total`` and ``mix`` are the largest
score, the sum of weights and the sum of weighted values so far. Knows nothing of where keys and
values come from.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = 1.4426950408889634
_LOG2E: tl.constexpr = tl.constexpr(LOG2E)
NOTHING: tl.constexpr = tl.constexpr(-1.0e30)  # below every score; inf - inf would be NaN

_INTERPRETED: tl.constexpr = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def bound(number):
    """A number read from memory as the bound of a loop: the interpreter has it as an array."""
    if _INTERPRETED:
        return (number + tl.arange(0, 1)).handle.data.item()
    else:
        return number


@triton.jit
def lowest_position(position, window, chunk):
    """The first position that a query at ``position`` sees; 0 stands for no window or chunk."""
    low = tl.where(window > 0, tl.maximum(position - window + 1, 0), 0)
    return tl.where(chunk > 0, tl.maximum(low, position - position % tl.maximum(chunk, 1)), low)


@triton.jit
def _entry(place):
    """An entry of a table that nothing writes.

    Rows of later tiles are copied ahead of their use. A plain load of their block's number would
    be copied ahead too, and take the stages that rows need: then hardly any rows are on their way.
    """
    if _INTERPRETED:
        return tl.load(place)
    else:
        return tl.inline_asm_elementwise(
            "ld.global.nc.b32 $0, [$1];", "=r,l", [place.to(tl.int64)],
            dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip


@triton.jit
def tile_rows(
    table, tile, j, seen, head,
    KV_HEADS: tl.constexpr, BLOCK_LEN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Where the rows ``j`` (those of tile ``tile``) of a head lie in the cache."""
    if BLOCK_LEN % TILE == 0:
        first = tile * TILE
        block = _entry(table + first // BLOCK_LEN).to(tl.int64)
        rows = (block * KV_HEADS + head) * BLOCK_LEN + first % BLOCK_LEN + tl.arange(0, TILE)
    else:
        block = _entry(table + tl.where(seen, j // BLOCK_LEN, 0)).to(tl.int64)
        rows = (block * KV_HEADS + head) * BLOCK_LEN + j % BLOCK_LEN
    return rows


@triton.jit
def bent(s, cap):
    """Scores limited to ±cap by a tanh, in units of log2; ``s`` is not."""
    return (cap * _LOG2E) * (1.0 - 2.0 / (tl.exp2(s * (2.0 * _LOG2E) / cap) + 1.0))


@triton.jit
def scored(q, k, scale, softcap, slope, distance, CAPPED: tl.constexpr, SLOPED: tl.constexpr):
    """Scores [queries, keys], in units of log2 where they are bent or sloped, else to be scaled.

    ``scale`` includes log2(e), but for ``CAPPED``.
    """
    s = tl.dot(q, tl.trans(k), input_precision="ieee")
    if CAPPED:
        s = bent(s * scale, softcap)
    elif SLOPED:
        s = s * scale
    if SLOPED:
        s += (slope * _LOG2E)[:, None] * distance.to(tl.float32)
    return s


@triton.jit
def folded(s, v, top, total, mix, scale, IS_SCALED: tl.constexpr):
    """The running softmax with one more tile of scores, scaled or not (scale > 0), and values."""
    if IS_SCALED:
        now = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - now[:, None])
    else:
        now = tl.maximum(top, tl.max(s, 1) * scale)
        p = tl.exp2(s * scale - now[:, None])
    keep = tl.exp2(top - now)
    total = total * keep + tl.sum(p, 1)
    mix = tl.dot(p.to(v.dtype), v, mix * keep[:, None], input_precision="ieee")
    return now, total, mix


@triton.jit
def finished(top, total, mix, sinks, head, is_head, SINK: tl.constexpr):
    """Weighted values divided by the sum of weights, with the sink of each query head in it."""
    if SINK:
        sink = tl.load(sinks + head, mask=is_head, other=0.0).to(tl.float32) * _LOG2E
        now = tl.maximum(top, sink)
        keep = tl.exp2(top - now)
        total = total * keep + tl.exp2(sink - now)
        mix = mix * keep[:, None]
    return mix / tl.where(total > 0.0, total, 1.0)[:, None]
