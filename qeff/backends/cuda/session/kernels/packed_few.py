"""Products of few tokens with packed weights: one launch with all that stands around them.

Codes become numbers in registers. ``_dots`` gives the products to the tensor cores: the weights
are the first operand, 32 columns (one block) at a time, whose sums are then scaled; the warps of a
program share the columns. It takes bf16 inputs, which the numbers fit exactly. ``packed_one`` does
the same for one token, ``lanes`` multiplies in f32, for every other dtype. Results for a token do
not depend on the tokens beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl

from qeff.backends.cuda import layout
from qeff.backends.cuda.session.kernels.dense_few import Around
from qeff.backends.cuda.session.kernels.packed_around import (
    arrays,
    ask_ahead,
    finish,
    inputs,
    row_index,
)
from qeff.backends.cuda.session.kernels.packed_decode import (
    BLOCKS,
    POWER,
    block_scale,
    group_numbers,
    group_scales,
)
from qeff.backends.cuda.session.kernels.packed_lanes import lanes
from qeff.backends.cuda.session.kernels.packed_one import pieces, whole
from qeff.backends.cuda.session.launch import release, settings, wait
from qeff.backends.cuda.session.matrix import Matrix

FEW = 16  # tokens of one launch
# Rows of matrices that need other cuts to keep all processors busy, or to leave room beside them.
SLIM, FEW_ROWS, SOME_ROWS = 2048, 4096, 8192
REGISTERS = 65536  # of a multiprocessor
# Inputs times this, and numbers times 2^-POWER, have products far from both ends of f32.
INPUT_POWER = 100


@dataclass(frozen=True, slots=True)
class Plan:
    """How one product is cut."""

    rows: int  # of a program; with a gate half of them are gate rows
    splits: int  # groups of columns at a time
    warps: int
    stages: int  # weights on their way; 0: ``lanes``
    programs: int = 0  # on each multiprocessor, for whole rows at a time; 0: pieces of rows
    tokens: int = 1  # room for so many; 1: the kernels of ``packed_one``


@triton.jit
def _product(numbers, values):
    """Of a block of each group; in f32 where the numbers are: the interpreter knows no bf16."""
    return tl.dot(numbers, values.to(numbers.dtype), input_precision="ieee")


@triton.jit(do_not_specialize=["tokens"])
def _dots(
    x, gain, codes, extra, scales, bias, residual, out,
    rows, tokens, x_stride, residual_stride, out_stride, eps,
    code_stride, extra_stride, scale_stride, STEPS: tl.constexpr,
    K: tl.constexpr, GROUPS: tl.constexpr, BLOCKS: tl.constexpr, FORMAT: tl.constexpr,
    POWER: tl.constexpr, SHIFT: tl.constexpr,
    ROWS: tl.constexpr, SPLITS: tl.constexpr, TOKENS: tl.constexpr,
    STAGES: tl.constexpr, ACTIVATION: tl.constexpr,
    ASM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    release(PDL)
    row = row_index(tl.program_id(0), rows, ROWS, ACTIVATION is not None)
    split = tl.arange(0, SPLITS)
    ask_ahead(codes, row, tl.minimum(split, GROUPS - 1), code_stride, PDL)
    k = tl.arange(0, 32)
    token = tl.arange(0, TOKENS)
    EVEN: tl.constexpr = K % (SPLITS * BLOCKS * 32) == 0
    EXTRA: tl.constexpr = 32 if ASM else 16
    code_row = codes + (row * code_stride)[None, :, None]
    extra_row = extra + (row * extra_stride)[None, :, None]
    SCALE_WORDS: tl.constexpr = 2 if FORMAT == "q4_0" else 1
    acc = tl.zeros([SPLITS, ROWS, TOKENS], tl.float32)
    squares = tl.zeros([SPLITS, 32, TOKENS], tl.float32)
    wait(PDL)
    for step in tl.range(0, STEPS, num_stages=STAGES):
        group = step * SPLITS + split
        # Groups behind the last meet inputs of zero; what is read there must only exist.
        held = group if GROUPS % SPLITS == 0 else tl.minimum(group, GROUPS - 1)
        scales_at = scales + (row * scale_stride)[None, :] + held[:, None] * SCALE_WORDS
        first, second = group_scales(scales_at, FORMAT)
        numbers = group_numbers(
            code_row + held[:, None, None] * 32, extra_row + held[:, None, None] * EXTRA,
            k[None, None, :], BLOCKS, FORMAT, ASM,
        )  # fmt: skip
        for j in tl.static_range(BLOCKS):
            column = (group * (BLOCKS * 32) + j * 32)[:, None] + k[None, :]
            value, squares = inputs(
                x, gain, column, token, tokens, x_stride, squares, K, EVEN, SHIFT
            )
            part = _product(numbers[j], value)
            acc += part * block_scale(first, second, j, FORMAT)[:, :, None]
    y = tl.sum(acc, 0)
    total = tl.sum(tl.sum(squares, 0), 0)
    finish(
        y, total, tl.program_id(0), token, rows, tokens,
        bias, residual, out, residual_stride, out_stride, eps,
        K, ROWS, TOKENS, POWER - SHIFT, gain is not None, ACTIVATION,
    )  # fmt: skip


@triton.jit(do_not_specialize=["tokens"])
def _held(
    x, gain, codes, extra, scales, bias, residual, out,
    rows, tokens, x_stride, residual_stride, out_stride, eps,
    code_stride, extra_stride, scale_stride, STEPS: tl.constexpr,
    K: tl.constexpr, GROUPS: tl.constexpr, BLOCKS: tl.constexpr, FORMAT: tl.constexpr,
    POWER: tl.constexpr, SHIFT: tl.constexpr,
    ROWS: tl.constexpr, SPLITS: tl.constexpr, TOKENS: tl.constexpr,
    STAGES: tl.constexpr, ACTIVATION: tl.constexpr,
    ASM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Whole rows at a time, tile after tile: the inputs stay in registers."""
    release(PDL)
    split = tl.arange(0, SPLITS)
    # Groups behind the last meet inputs of zero; what is read there must only exist.
    held = split if GROUPS == SPLITS else tl.minimum(split, GROUPS - 1)
    k = tl.arange(0, 32)
    token = tl.arange(0, TOKENS)
    begin = tl.program_id(0)
    row = row_index(begin, rows, ROWS, ACTIVATION is not None)
    ask_ahead(codes, row, held, code_stride, PDL)
    EVEN: tl.constexpr = K == SPLITS * BLOCKS * 32
    EXTRA: tl.constexpr = 32 if ASM else 16
    SCALE_WORDS: tl.constexpr = 2 if FORMAT == "q4_0" else 1
    squares = tl.zeros([SPLITS, 32, TOKENS], tl.float32)
    values = ()
    wait(PDL)
    for j in tl.static_range(BLOCKS):
        column = (split * (BLOCKS * 32) + j * 32)[:, None] + k[None, :]
        value, squares = inputs(x, gain, column, token, tokens, x_stride, squares, K, EVEN, SHIFT)
        values = values + (value,)  # type: ignore[assignment]  # noqa: RUF005 (Triton has no other)
    total = tl.sum(tl.sum(squares, 0), 0)
    for step in tl.range(0, STEPS, num_stages=STAGES):
        tile = begin + step * tl.num_programs(0)  # one behind the last stores nothing
        row = row_index(tile, rows, ROWS, ACTIVATION is not None)
        scales_at = scales + (row * scale_stride)[None, :] + held[:, None] * SCALE_WORDS
        first, second = group_scales(scales_at, FORMAT)
        numbers = group_numbers(
            codes + (row * code_stride)[None, :, None] + held[:, None, None] * 32,
            extra + (row * extra_stride)[None, :, None] + held[:, None, None] * EXTRA,
            k[None, None, :], BLOCKS, FORMAT, ASM,
        )  # fmt: skip
        acc = tl.zeros([SPLITS, ROWS, TOKENS], tl.float32)
        for j in tl.static_range(BLOCKS):
            part = _product(numbers[j], values[j])
            acc += part * block_scale(first, second, j, FORMAT)[:, :, None]
        y = tl.sum(acc, 0)
        finish(
            y, total, tile, token, rows, tokens,
            bias, residual, out, residual_stride, out_stride, eps,
            K, ROWS, TOKENS, POWER - SHIFT, gain is not None, ACTIVATION,
        )  # fmt: skip


def plan_for(matrix: Matrix, tokens: int, dtype: torch.dtype, *, alike: bool = False) -> Plan:
    """The plan that measured best for such a product; ``alike``: one for any number of tokens."""
    if dtype is not torch.bfloat16:
        return Plan(16, 4, 4, 0)
    rows, columns = matrix.shape
    groups = layout.num_groups(matrix.format, columns)
    is_wide = BLOCKS[matrix.format] == 4  # eight bits
    is_whole = groups <= (32 if is_wide else 16)  # registers hold the inputs of so many groups
    splits = max(4, triton.next_power_of_2(groups))
    if tokens == 1 and not alike:
        if not is_whole:
            return Plan(16, 16 if is_wide else 8, 8, 3)
        if is_wide:
            return Plan(16, 8, 4, 3) if rows <= SLIM else Plan(16, splits, 8, 3, 1)
        if rows <= FEW_ROWS:
            return Plan(16, splits, 8, 3, 2)
        return Plan(16, splits, 4, 3, 2) if rows > SOME_ROWS else Plan(16, splits, 4, 2, 3)
    room = FEW if alike or tokens > FEW // 2 else FEW // 2
    if not is_whole:
        return Plan(16, 8, 8, 3, 0, room) if room < FEW else Plan(16, 4, 4, 3, 0, room)
    if is_wide or alike:
        return Plan(16, splits, 8, 2, 1, room)
    if room < FEW:
        return Plan(16, splits, 8, 2, 2, room)
    # Three stages of 16 groups of mxfp6 are 236 kB, more than a multiprocessor's shared memory.
    return Plan(16, splits, 8, 2 if matrix.format == "mxfp6" and splits > 8 else 3, 1, room)


def packed_few(
    x: torch.Tensor,
    matrix: Matrix,
    out: torch.Tensor,
    around: Around,
    *,
    alike: bool = False,
) -> None:
    """``out`` = (normalised x) W^T + bias, activated and gated, + residual; up to 16 tokens.

    ``alike``: a token's result does not depend on how many others there are.
    """
    plan = plan_for(matrix, len(x), x.dtype, alike=alike)
    launch(plan, x, matrix, out, around)


def launch(plan: Plan, x: torch.Tensor, matrix: Matrix, out: torch.Tensor, around: Around) -> None:
    """:func:`packed_few` by a plan."""
    tokens, columns = x.shape
    norm, residual = around.norm, around.residual
    rows = matrix.shape[0]
    assert tokens <= FEW and matrix.shape[1] == columns, "few tokens of the matrix's width"
    assert x.stride(1) == 1 and out.stride(1) == 1, "rows lie in one piece"
    if not tokens:
        return
    with_asm = x.is_cuda
    packed = arrays(matrix, torch.int16 if with_asm else torch.int32)
    power = POWER[matrix.format] if with_asm else 0
    is_single = plan.tokens == 1 and plan.stages > 0
    assert matrix.scales is not None, "a packed matrix has scales"
    arguments = (
        x, None if norm is None else norm.gain, packed.codes, packed.extra,
        matrix.scales if is_single else packed.scales, around.bias, residual, out,
        rows, tokens, x.stride(0), 0 if residual is None else residual.stride(0), out.stride(0),
        0.0 if norm is None else norm.eps, packed.code_stride, packed.extra_stride,
        matrix.scales.stride(0) if is_single else packed.scale_stride,
    )  # fmt: skip
    constants = {
        "K": columns, "GROUPS": packed.groups, "BLOCKS": BLOCKS[matrix.format],
        "FORMAT": matrix.format, "POWER": power, "SHIFT": INPUT_POWER if power else 0,
        "ROWS": plan.rows, "SPLITS": plan.splits, "ASM": with_asm,
        "ACTIVATION": around.activation, "num_warps": plan.warps, **settings(x.device),
    }  # fmt: skip
    tiles = triton.cdiv(rows, plan.rows)
    if plan.stages == 0:
        lanes[(tiles, tokens)](*arguments, **constants)
        return
    assert tokens <= plan.tokens, "room for every token"
    constants |= {"TOKENS": plan.tokens, "STAGES": plan.stages}
    if is_single:
        constants |= {"LEADS": around.leads, "JOINS": around.joins}
    if plan.programs == 0:
        constants["STEPS"] = triton.cdiv(packed.groups, plan.splits)
        (pieces if is_single else _dots)[(tiles,)](*arguments, **constants)
        return
    assert plan.splits >= packed.groups, "whole rows at a time"
    programs = min(tiles, plan.programs * multiprocessors(x.device))
    constants["STEPS"] = triton.cdiv(tiles, programs)
    if with_asm:
        constants["maxnreg"] = min(REGISTERS // (32 * plan.warps * plan.programs) // 8 * 8, 248)
    (whole if is_single else _held)[(programs,)](*arguments, **constants)


@cache
def multiprocessors(device: torch.device) -> int:
    """Of the GPU; without one, few enough that programs of a test have several tiles."""
    if device.type != "cuda":
        return 2
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
