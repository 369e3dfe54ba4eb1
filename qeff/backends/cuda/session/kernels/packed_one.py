"""The product of one token with packed weights by tensor cores, the blocks side by side.

The weights are the first operand, 32 columns (one block) at a time. The second has eight columns,
and the inputs of block j stand in column j alone, so the sums of all blocks of a group come out
side by side in one tile, which their scales multiply at once. ``whole`` keeps the inputs of a
whole row in registers and goes from tile to tile of rows; ``pieces`` goes along the row.

Products of one input run beside each other: the first (``LEADS``) lets the next start once its
input is there, and those (``JOINS``) wait for the one before at their end.
"""

from __future__ import annotations

import triton
import triton.language as tl

from qeff.backends.cuda.session.kernels.packed_around import ask_ahead, finish, row_index
from qeff.backends.cuda.session.kernels.packed_decode import group_numbers
from qeff.backends.cuda.session.launch import release, wait


@triton.jit
def _inputs(
    x, gain, group, K: tl.constexpr, BLOCKS: tl.constexpr, EVEN: tl.constexpr, SHIFT: tl.constexpr
):  # fmt: skip
    """Inputs of groups [groups, 32, 8], the blocks side by side, and their squares."""
    k = tl.arange(0, 32)
    block = tl.arange(0, 8)
    column = (group * (BLOCKS * 32))[:, None, None] + block[None, None, :] * 32 + k[None, :, None]
    if EVEN:
        value = tl.load(x + column)
    else:
        inside = (block < BLOCKS)[None, None, :] & (column < K)
        value = tl.load(x + column, mask=inside, other=0.0)
    f = value.to(tl.float32)
    squares = f * f
    if gain is not None:
        if EVEN:
            f *= tl.load(gain + column).to(tl.float32)
        else:
            f *= tl.load(gain + column, mask=inside, other=0.0).to(tl.float32)
        value = (f * (2.0**SHIFT)).to(tl.bfloat16)
    elif SHIFT != 0:
        value = (f * (2.0**SHIFT)).to(tl.bfloat16)
    return value, squares


@triton.jit
def block_sums(
    values, codes, extra, BLOCKS: tl.constexpr, FORMAT: tl.constexpr, ASM: tl.constexpr,
    ROWS: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Products of rows with groups, the blocks side by side: [groups, rows, 8]."""
    numbers = group_numbers(codes, extra, tl.arange(0, 32)[None, None, :], BLOCKS, FORMAT, ASM)
    block = tl.arange(0, 8)[None, None, :]
    values = values.to(numbers[0].dtype)  # f32 in the interpreter, which knows no bf16
    sums = tl.zeros([SPLITS, ROWS, 8], tl.float32)
    for j in tl.static_range(BLOCKS):
        part = tl.dot(numbers[j], values, input_precision="ieee")
        sums = tl.where(block == j, part, sums)
    return sums


@triton.jit
def scale_number(raw, FORMAT: tl.constexpr):
    """A scale as it is stored, in f32."""
    if FORMAT == "q8_0" or FORMAT == "q4_0":
        scale = raw.to(tl.float32)
    else:
        bits = tl.maximum(raw.to(tl.int32) << 23, 0x00400000)  # 2^-127 for an exponent of 0
        scale = bits.to(tl.float32, bitcast=True)
    return scale


@triton.jit
def _scales(scales, group, row, row_stride, BLOCKS: tl.constexpr, FORMAT: tl.constexpr):
    """The scales of groups of rows in f32 [groups, rows, 8]."""
    block = tl.arange(0, 8) % BLOCKS
    place = scales + (row * row_stride)[None, :, None] + (group * BLOCKS)[:, None, None]
    return scale_number(tl.load(place + block[None, None, :]), FORMAT)


@triton.jit(do_not_specialize=["tokens"])
def whole(
    x, gain, codes, extra, scales, bias, residual, out,
    rows, tokens, x_stride, residual_stride, out_stride, eps,
    code_stride, extra_stride, scale_stride, STEPS: tl.constexpr,
    K: tl.constexpr, GROUPS: tl.constexpr, BLOCKS: tl.constexpr, FORMAT: tl.constexpr,
    POWER: tl.constexpr, SHIFT: tl.constexpr, ROWS: tl.constexpr, SPLITS: tl.constexpr,
    TOKENS: tl.constexpr, STAGES: tl.constexpr, ACTIVATION: tl.constexpr,
    ASM: tl.constexpr, LEADS: tl.constexpr, JOINS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Whole rows at a time, tile after tile."""
    release(PDL and not LEADS)
    split = tl.arange(0, SPLITS)
    # Groups behind the last meet inputs of zero; what is read there must only exist.
    held = split if GROUPS == SPLITS else tl.minimum(split, GROUPS - 1)
    begin = tl.program_id(0)
    row = row_index(begin, rows, ROWS, ACTIVATION is not None)
    ask_ahead(codes, row, held, code_stride, PDL)
    EVEN: tl.constexpr = K == SPLITS * BLOCKS * 32 and BLOCKS == 8
    EXTRA: tl.constexpr = 32 if ASM else 16
    wait(PDL and not JOINS)
    release(PDL and LEADS)
    values, squares = _inputs(x, gain, split, K, BLOCKS, EVEN, SHIFT)
    total = tl.zeros([1], tl.float32)
    if gain is not None:
        total += tl.sum(tl.sum(tl.sum(squares, 2), 1), 0)
    for step in tl.range(0, STEPS, num_stages=STAGES):
        tile = begin + step * tl.num_programs(0)  # one behind the last stores nothing
        row = row_index(tile, rows, ROWS, ACTIVATION is not None)
        sums = block_sums(
            values,
            codes + (row * code_stride)[None, :, None] + held[:, None, None] * 32,
            extra + (row * extra_stride)[None, :, None] + held[:, None, None] * EXTRA,
            BLOCKS, FORMAT, ASM, ROWS, SPLITS,
        )  # fmt: skip
        sums *= _scales(scales, held, row, scale_stride, BLOCKS, FORMAT)
        y = tl.sum(tl.sum(sums, 2), 0)[:, None]
        finish(
            y, total, tile, tl.arange(0, TOKENS), rows, tokens,
            bias, residual, out, residual_stride, out_stride, eps,
            K, ROWS, TOKENS, POWER - SHIFT, gain is not None, ACTIVATION,
        )  # fmt: skip
    wait(PDL and JOINS)


@triton.jit(do_not_specialize=["tokens"])
def pieces(
    x, gain, codes, extra, scales, bias, residual, out,
    rows, tokens, x_stride, residual_stride, out_stride, eps,
    code_stride, extra_stride, scale_stride, STEPS: tl.constexpr,
    K: tl.constexpr, GROUPS: tl.constexpr, BLOCKS: tl.constexpr, FORMAT: tl.constexpr,
    POWER: tl.constexpr, SHIFT: tl.constexpr, ROWS: tl.constexpr, SPLITS: tl.constexpr,
    TOKENS: tl.constexpr, STAGES: tl.constexpr, ACTIVATION: tl.constexpr,
    ASM: tl.constexpr, LEADS: tl.constexpr, JOINS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One tile of rows, ``STEPS`` pieces of it one after the other."""
    release(PDL and not LEADS)
    row = row_index(tl.program_id(0), rows, ROWS, ACTIVATION is not None)
    split = tl.arange(0, SPLITS)
    ask_ahead(codes, row, tl.minimum(split, GROUPS - 1), code_stride, PDL)
    EVEN: tl.constexpr = K % (SPLITS * BLOCKS * 32) == 0 and BLOCKS == 8
    EXTRA: tl.constexpr = 32 if ASM else 16
    code_row = codes + (row * code_stride)[None, :, None]
    extra_row = extra + (row * extra_stride)[None, :, None]
    acc = tl.zeros([SPLITS, ROWS, 8], tl.float32)
    squares = tl.zeros([SPLITS, 32, 8], tl.float32)
    wait(PDL and not JOINS)
    release(PDL and LEADS)
    for step in tl.range(0, STEPS, num_stages=STAGES):
        group = step * SPLITS + split
        held = group if GROUPS == STEPS * SPLITS else tl.minimum(group, GROUPS - 1)
        values, more = _inputs(x, gain, group, K, BLOCKS, EVEN, SHIFT)
        if gain is not None:
            squares += more
        sums = block_sums(
            values, code_row + held[:, None, None] * 32, extra_row + held[:, None, None] * EXTRA,
            BLOCKS, FORMAT, ASM, ROWS, SPLITS,
        )  # fmt: skip
        acc += sums * _scales(scales, held, row, scale_stride, BLOCKS, FORMAT)
    y = tl.sum(tl.sum(acc, 2), 0)[:, None]
    total = tl.zeros([1], tl.float32)
    if gain is not None:
        total += tl.sum(tl.sum(tl.sum(squares, 2), 1), 0)
    finish(
        y, total, tl.program_id(0), tl.arange(0, TOKENS), rows, tokens,
        bias, residual, out, residual_stride, out_stride, eps,
        K, ROWS, TOKENS, POWER - SHIFT, gain is not None, ACTIVATION,
    )  # fmt: skip
    wait(PDL and JOINS)
