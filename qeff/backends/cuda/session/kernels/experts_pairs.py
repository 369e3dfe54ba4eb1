"""Products of few pairs of token and expert with plain and e4m3 matrices, without sorting them.

Memory decides: a program reads some rows of one pair's expert, wide, and multiplies and adds in
f32 on lanes. Pairs follow each other, so that those of the same expert meet in the cache. The
second product sums a token's experts at once, or leaves that to ``experts_sum``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from qeff.backends.cuda.session.kernels.experts_around import (
    Gate,
    Stack,
    chosen_expert,
    own_rows,
    pair_sizes,
    store_outputs,
)
from qeff.backends.cuda.session.launch import release, settings, wait


@dataclass(frozen=True, slots=True)
class PairCut:
    """How a product of few pairs is cut."""

    rows: int  # of a program; with a gate half of them are gate rows
    columns: int  # at a time; packed matrices: groups of columns at a time
    warps: int
    stages: int = 1  # packed matrices: weights on their way


@dataclass(frozen=True, slots=True)
class Chosen:
    """A token's experts, and what their results are summed with."""

    index: torch.Tensor  # [tokens, chosen]
    weight: torch.Tensor  # [tokens, chosen]
    residual: torch.Tensor | None = None  # [tokens, outputs]


@triton.jit
def _up(
    x, weights, scales, bias, index, out,
    experts, outputs, rows, chosen, x_stride, index_stride, out_stride,
    K: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    HOW: tl.constexpr, ACTIVATION: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    release(PDL)
    pair = tl.program_id(0)
    block = tl.program_id(1)
    own = own_rows(block * ROWS + tl.arange(0, ROWS), outputs, HOW)
    wait(PDL)
    row = chosen_expert(index, pair, chosen, index_stride, experts) * rows + own
    x_row = x + (pair // chosen).to(tl.int64) * x_stride
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in tl.static_range(0, K, COLUMNS):
        at = start + tl.arange(0, COLUMNS)
        place = weights + row[:, None] * K + at[None, :]
        if K % COLUMNS == 0:
            w = tl.load(place)
            v = tl.load(x_row + at)
        else:
            w = tl.load(place, mask=(at < K)[None, :], other=0.0)
            v = tl.load(x_row + at, mask=at < K, other=0.0)
        sums += w.to(tl.float32) * v.to(tl.float32)[None, :]
    y = tl.sum(sums, 1)
    if scales is not None:
        y *= tl.load(scales + row)
    one = tl.arange(0, 1)
    store_outputs(
        tl.reshape(y, [1, ROWS]), bias, row, out, pair.to(tl.int64) + one, one == 0,
        block, outputs, out_stride, 1, ROWS, HOW, ACTIVATION, ALPHA, LIMIT,
    )  # fmt: skip


@triton.jit
def _down(
    hidden, weights, scales, bias, index, weight, residual, out,
    experts, rows, chosen, hidden_stride, index_stride, weight_stride, residual_stride, out_stride,
    K: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, COUNT: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """The ``COUNT`` pairs of a token are one result."""
    release(PDL)
    unit = tl.program_id(0)
    output = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    own = tl.minimum(output, rows - 1)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    beside = tl.zeros([ROWS], tl.float32)
    wait(PDL)
    for number in tl.static_range(COUNT):
        pair = unit * COUNT + number
        row = chosen_expert(index, pair, chosen, index_stride, experts) * rows + own
        share = tl.load(weight + unit.to(tl.int64) * weight_stride + number)
        factor = tl.full([ROWS], 1.0, tl.float32) * share.to(tl.float32)
        if bias is not None:
            beside += factor * tl.load(bias + row).to(tl.float32)
        if scales is not None:
            factor *= tl.load(scales + row)
        v_row = hidden + pair.to(tl.int64) * hidden_stride
        for start in tl.static_range(0, K, COLUMNS):
            at = start + tl.arange(0, COLUMNS)
            place = weights + row[:, None] * K + at[None, :]
            if K % COLUMNS == 0:
                w = tl.load(place)
                v = tl.load(v_row + at)
            else:
                w = tl.load(place, mask=(at < K)[None, :], other=0.0)
                v = tl.load(v_row + at, mask=at < K, other=0.0)
            sums += w.to(tl.float32) * v.to(tl.float32)[None, :] * factor[:, None]
    y = tl.sum(sums, 1) + beside
    inside = output < rows
    if residual is not None:
        at = residual + unit.to(tl.int64) * residual_stride + output
        y += tl.load(at, mask=inside, other=0.0).to(tl.float32)
    place = out + unit.to(tl.int64) * out_stride + output
    tl.store(place, y.to(out.dtype.element_ty), mask=inside)


def up_pairs(
    x: torch.Tensor, stack: Stack, gate: Gate, index: torch.Tensor, out: torch.Tensor, cut: PairCut
) -> None:
    """``out`` [pairs, outputs] from x [tokens, K]; ``index`` [tokens, chosen] are the experts."""
    matrix = stack.matrix
    assert matrix.codes.shape == matrix.shape and matrix.codes.is_contiguous(), "plain or e4m3"
    assert cut.rows % gate.turns == 0, "gate and up together"
    _up[(len(out), triton.cdiv(stack.rows, cut.rows))](
        x,
        matrix.codes,
        matrix.scales,
        stack.bias,
        index,
        out,
        *pair_sizes(x, stack, gate, index, out),
        K=stack.columns,
        ROWS=cut.rows,
        COLUMNS=cut.columns,
        num_warps=cut.warps,
        **gate.constants(),
        **settings(x.device),
    )


def down_pairs(
    hidden: torch.Tensor, stack: Stack, chosen: Chosen, out: torch.Tensor, cut: PairCut
) -> None:
    """``out`` [tokens, outputs] from hidden [pairs, K]: the sum over a token's pairs."""
    matrix, index, residual = stack.matrix, chosen.index, chosen.residual
    assert matrix.codes.shape == matrix.shape and matrix.codes.is_contiguous(), "plain or e4m3"
    assert hidden.shape == (index.numel(), stack.columns) and out.shape == (len(index), stack.rows)
    _down[(len(out), triton.cdiv(stack.rows, cut.rows))](
        hidden,
        matrix.codes,
        matrix.scales,
        stack.bias,
        index,
        chosen.weight,
        residual,
        out,
        stack.experts,
        stack.rows,
        index.shape[1],
        hidden.stride(0),
        index.stride(0),
        chosen.weight.stride(0),
        0 if residual is None else residual.stride(0),
        out.stride(0),
        K=stack.columns,
        ROWS=cut.rows,
        COLUMNS=cut.columns,
        COUNT=index.shape[1],
        num_warps=cut.warps,
        **settings(hidden.device),
    )
