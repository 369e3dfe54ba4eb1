"""Products of many pairs with plain and e4m3 matrices of experts, by tensor cores.

One launch for all experts: a program has one entry of the table of tiles and one block of rows.
Programs that follow each other share rows or pairs, so that the cache serves them. With few pairs
for an expert memory decides, with many the tensor cores.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from qeff.backends.cuda.session.kernels.experts_around import (
    Gate,
    Stack,
    own_rows,
    store_outputs,
)
from qeff.backends.cuda.session.kernels.experts_sort import Sorted
from qeff.backends.cuda.session.launch import release, settings, wait

_INTERPRETED: tl.constexpr = tl.constexpr(triton.knobs.runtime.interpret)


@dataclass(frozen=True, slots=True)
class Cut:
    """How one product is cut; tiles have as many pairs as the table says."""

    rows: int
    columns: int  # at a time; packed matrices: not used, they have groups
    warps: int
    stages: int
    is_flipped: bool = False  # the weights are the first operand
    group: int = 8  # tiles that share blocks of rows


@triton.jit
def own_tile(num_tiles, blocks, GROUP: tl.constexpr):
    """The tile and the block of rows of this program."""
    program = tl.program_id(0)
    width = GROUP * blocks
    first = program // width * GROUP
    size = tl.minimum(num_tiles - first, GROUP)
    return first + program % width % size, program % width // size


@triton.jit
def own_pairs(order, entry, chosen, PAIRS: tl.constexpr, IS_FIRST: tl.constexpr):
    """Of a tile's pairs the rows to read and to write, and which of them exist.

    The first product reads rows of tokens and writes in sorted order, the second the other way.
    """
    first = tl.load(entry + 1)
    count = tl.load(entry + 2)
    i = tl.arange(0, PAIRS)
    place = first + tl.minimum(i, count - 1)
    pair = tl.load(order + place)
    if IS_FIRST:
        source = pair // chosen
        target = place
    else:
        source = place
        target = pair
    return source.to(tl.int64), target.to(tl.int64), i < count


@triton.jit
def _add_product(sums, w, v, IS_FLIPPED: tl.constexpr):
    """Sums and the products of weights [rows, columns] and inputs [pairs, columns]."""
    if _INTERPRETED:  # which has no product of bf16
        w = w.to(tl.float32)
        v = v.to(tl.float32)
    if IS_FLIPPED:
        sums = tl.dot(w, tl.trans(v), sums, input_precision="ieee")
    else:
        sums = tl.dot(v, tl.trans(w), sums, input_precision="ieee")
    return sums


@triton.jit(do_not_specialize=["num_tiles"])
def _tiles(
    x, weights, scales, bias, out, order, table,
    num_tiles, outputs, rows, chosen, x_stride, out_stride,
    K: tl.constexpr, PAIRS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    STAGES: tl.constexpr, GROUP: tl.constexpr, IS_FLIPPED: tl.constexpr, IS_FIRST: tl.constexpr,
    HOW: tl.constexpr, ACTIVATION: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    release(PDL)
    tile, block = own_tile(num_tiles, tl.cdiv(rows, ROWS), GROUP)
    wait(PDL)
    entry = table + tile * 4
    expert = tl.load(entry)
    if expert >= 0:
        source, target, is_pair = own_pairs(order, entry, chosen, PAIRS, IS_FIRST)
        own = own_rows(block * ROWS + tl.arange(0, ROWS), outputs, HOW)
        row = expert.to(tl.int64) * rows + own
        weights_at = weights + row[:, None] * K
        x_at = x + source[:, None] * x_stride
        column = tl.arange(0, COLUMNS)
        if IS_FLIPPED:
            y = tl.zeros([ROWS, PAIRS], tl.float32)
        else:
            y = tl.zeros([PAIRS, ROWS], tl.float32)
        for start in tl.range(0, K, COLUMNS, num_stages=STAGES):
            at = (start + column)[None, :]
            if K % COLUMNS == 0:
                v = tl.load(x_at + at)
                w = tl.load(weights_at + at)
            else:
                v = tl.load(x_at + at, mask=at < K, other=0.0)
                w = tl.load(weights_at + at, mask=at < K, other=0.0)
            y = _add_product(y, w.to(x.dtype.element_ty), v, IS_FLIPPED)
        if IS_FLIPPED:
            y = tl.trans(y)
        if scales is not None:
            y *= tl.load(scales + row)[None, :]
        store_outputs(
            y, bias, row, out, target, is_pair, block, outputs, out_stride,
            PAIRS, ROWS, HOW, ACTIVATION, ALPHA, LIMIT,
        )  # fmt: skip


def tiles(
    x: torch.Tensor,
    stack: Stack,
    gate: Gate,
    out: torch.Tensor,
    pairs: Sorted,
    cut: Cut,
    *,
    is_first: bool,
) -> None:
    """``out`` [pairs, outputs] of sorted pairs.

    The first product reads x [tokens, K] and writes in sorted order; the second reads that and
    writes in the pairs' own order.
    """
    matrix = stack.matrix
    assert matrix.codes.shape == matrix.shape and matrix.codes.is_contiguous(), "plain or e4m3"
    assert x.shape[1] == stack.columns and x.stride(1) == out.stride(1) == 1, "rows in one piece"
    assert out.shape[1] * gate.turns == stack.rows, "an output for each row, or for two"
    num_tiles = len(pairs.table)
    _tiles[(num_tiles * triton.cdiv(stack.rows, cut.rows),)](
        x,
        matrix.codes,
        matrix.scales,
        stack.bias,
        out,
        pairs.order,
        pairs.table,
        num_tiles,
        out.shape[1],
        stack.rows,
        pairs.chosen,
        x.stride(0),
        out.stride(0),
        K=stack.columns,
        PAIRS=pairs.tile,
        ROWS=cut.rows,
        COLUMNS=cut.columns,
        STAGES=cut.stages,
        GROUP=cut.group,
        IS_FLIPPED=cut.is_flipped,
        IS_FIRST=is_first,
        num_warps=cut.warps,
        num_stages=cut.stages,
        **gate.constants(),
        **settings(x.device),
    )
