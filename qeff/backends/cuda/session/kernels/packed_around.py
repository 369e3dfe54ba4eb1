"""What packed products have around them: their arrays, rows and inputs, and what follows the sums.

Nothing here knows a plan; the kernels of ``packed_few`` and ``packed_many`` call it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from qeff.backends.cuda import layout
from qeff.backends.cuda.session.kernels.gated import activate
from qeff.backends.cuda.session.launch import prefetch
from qeff.backends.cuda.session.matrix import Matrix


@dataclass(frozen=True, slots=True)
class Packed:
    """The arrays of a packed matrix as kernels read them."""

    codes: torch.Tensor  # i32
    extra: torch.Tensor  # i32 or i16: what lies behind the groups of a row
    scales: torch.Tensor  # words of one group's scales
    groups: int
    code_stride: int  # words of a row
    extra_stride: int
    scale_stride: int


def arrays(matrix: Matrix, extra: torch.dtype) -> Packed:
    """Views of a matrix's memory in the words that kernels load."""
    form = matrix.format
    groups = layout.num_groups(form, matrix.shape[1])
    assert matrix.codes.shape == layout.codes_shape(form, matrix.shape), "codes of another layout"
    assert matrix.scales is not None, "a packed matrix has scales"
    codes = matrix.codes.view(torch.int32)
    beyond = matrix.codes.view(extra)[:, groups * 128 // extra.itemsize :]
    word = torch.int32 if form == "mxfp8" else torch.int64
    scales = matrix.scales.view(torch.uint8).view(word)
    strides = codes.stride(0), beyond.stride(0), scales.stride(0)
    return Packed(codes, beyond, scales, groups, *strides)


@triton.jit
def row_index(tile, rows, ROWS: tl.constexpr, GATED: tl.constexpr):
    """The matrix rows of a tile: gate rows, then the up rows that belong to them."""
    m = tl.arange(0, ROWS)
    if GATED:
        HALF: tl.constexpr = ROWS // 2
        row = tl.minimum(tile * HALF + m % HALF, rows // 2 - 1)
        row += tl.where(m >= HALF, rows // 2, 0)
    else:
        row = tl.minimum(tile * ROWS + m, rows - 1)
    return row.to(tl.int64)


@triton.jit
def ask_ahead(codes, row, group, code_stride, PDL: tl.constexpr):
    """Ask for the codes of groups of rows before the kernel waits."""
    ahead = codes + row[:, None] * code_stride + group[None, :] * 32
    prefetch(ahead, (group >= 0)[None, :] & (row >= 0)[:, None], PDL)


@triton.jit
def inputs(
    x, gain, column, token, tokens, stride, squares,
    K: tl.constexpr, EVEN: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """Inputs of one block of each group: [groups, 32, tokens]."""
    every = tl.minimum(token, tokens - 1)
    place = x + column[:, :, None] + (every * stride)[None, None, :]
    # The gain as a tile too: loads of the inputs' shape are queued, those of vectors are not.
    gain_place = column[:, :, None] + tl.zeros_like(token)[None, None, :]
    if EVEN:
        value = tl.load(place)
    else:
        value = tl.load(place, mask=(column < K)[:, :, None], other=0.0)
    if gain is not None:
        f = value.to(tl.float32)
        squares += f * f
        if EVEN:
            g = tl.load(gain + gain_place).to(tl.float32)
        else:
            g = tl.load(gain + gain_place, mask=(column < K)[:, :, None], other=0.0)
        value = (f * g.to(tl.float32) * (2.0**SHIFT)).to(tl.bfloat16)
    elif SHIFT != 0:
        value = (value.to(tl.float32) * (2.0**SHIFT)).to(tl.bfloat16)
    return value, squares


@triton.jit
def finish(
    y, squares, tile, token, rows, tokens, bias, residual, out, residual_stride, out_stride, eps,
    K: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr, POWER: tl.constexpr,
    NORMED: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Norm, bias, activation and residual of sums [rows, tokens] times 2^POWER, stored."""
    if POWER != 0:
        y *= 2.0**POWER
    if NORMED:
        y *= tl.rsqrt(squares / K + eps)[None, :]
    if bias is not None:
        row = row_index(tile, rows, ROWS, ACTIVATION is not None)
        y += tl.load(bias + row).to(tl.float32)[:, None]
    if ACTIVATION is not None:
        HALF: tl.constexpr = ROWS // 2
        parts = tl.reshape(y, [2, HALF, TOKENS])
        is_gate = (tl.arange(0, 2) == 0)[:, None, None]
        gate = tl.sum(tl.where(is_gate, parts, 0.0), 0)
        up = tl.sum(tl.where(is_gate, 0.0, parts), 0)
        y = activate(gate, ACTIVATION) * up
        row = tile * HALF + tl.arange(0, HALF)
        limit = rows // 2
    else:
        row = tile * ROWS + tl.arange(0, ROWS)
        limit = rows
    inside = (row < limit)[:, None] & (token < tokens)[None, :]
    if residual is not None:
        place = residual + token.to(tl.int64)[None, :] * residual_stride + row[:, None]
        y += tl.load(place, mask=inside, other=0.0).to(tl.float32)
    place = out + token.to(tl.int64)[None, :] * out_stride + row[:, None]
    tl.store(place, y.to(out.dtype.element_ty), mask=inside)
