"""Products of few tokens with packed weights in f32 arithmetic, for inputs of any dtype.

Each program has some rows and one token; the lanes share the columns.
"""

from __future__ import annotations

import triton
import triton.language as tl

from qeff.backends.cuda.session.kernels.packed_around import finish, row_index
from qeff.backends.cuda.session.kernels.packed_decode import (
    block_scale,
    group_numbers,
    group_scales,
)
from qeff.backends.cuda.session.launch import release, wait


@triton.jit
def lanes(
    x, gain, codes, extra, scales, bias, residual, out,
    rows, tokens, x_stride, residual_stride, out_stride, eps,
    code_stride, extra_stride, scale_stride,
    K: tl.constexpr, GROUPS: tl.constexpr, BLOCKS: tl.constexpr, FORMAT: tl.constexpr,
    POWER: tl.constexpr, SHIFT: tl.constexpr, ROWS: tl.constexpr, SPLITS: tl.constexpr,
    ACTIVATION: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One token a program."""
    release(PDL)
    row = row_index(tl.program_id(0), rows, ROWS, ACTIVATION is not None)
    split = tl.arange(0, SPLITS)
    k = tl.arange(0, 32)
    token = tl.program_id(1)
    code_row = codes + (row * code_stride)[:, None, None]
    extra_row = extra + (row * extra_stride)[:, None, None]
    EXTRA: tl.constexpr = 32 if ASM else 16
    SCALE_WORDS: tl.constexpr = 2 if FORMAT == "q4_0" else 1
    acc = tl.zeros([ROWS, SPLITS, 32], tl.float32)
    squares = tl.zeros([SPLITS, 32], tl.float32)
    wait(PDL)
    for start in range(0, GROUPS, SPLITS):
        group = start + split
        held = tl.minimum(group, GROUPS - 1)
        words_at = code_row + held[None, :, None] * 32
        scales_at = scales + (row * scale_stride)[:, None] + held[None, :] * SCALE_WORDS
        first, second = group_scales(scales_at, FORMAT)
        numbers = group_numbers(
            words_at, extra_row + held[None, :, None] * EXTRA, k[None, None, :], BLOCKS, FORMAT, ASM
        )
        for j in tl.static_range(BLOCKS):
            column = (group * (BLOCKS * 32) + j * 32)[:, None] + k[None, :]
            inside = column < K
            value = tl.load(x + token * x_stride + column, mask=inside, other=0.0).to(tl.float32)
            if gain is not None:
                squares += value * value
                value *= tl.load(gain + column, mask=inside, other=0.0).to(tl.float32)
            if SHIFT != 0:
                value *= 2.0**SHIFT
            scale = block_scale(first, second, j, FORMAT)
            acc += numbers[j].to(tl.float32) * value[None, :, :] * scale[:, :, None]
    y = tl.sum(tl.sum(acc, 2), 1)[:, None]
    total = tl.zeros([1], tl.float32) + tl.sum(tl.sum(squares, 1), 0)
    finish(
        y, total, tl.program_id(0), token + tl.arange(0, 1), rows, tokens,
        bias, residual, out, residual_stride, out_stride, eps,
        K, ROWS, 1, POWER - SHIFT, gain is not None, ACTIVATION,
    )  # fmt: skip
