"""Products of 17 to some hundred tokens with packed weights, whose numbers are made in registers.

Tensor cores multiply blocks of 32 columns, in the dtype of the inputs, which holds the numbers of
every format exactly; each block's sums are scaled in f32. Beyond some hundred tokens unpacking the
matrix once (``unpack``) and a library's product take less time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from qeff.backends.cuda.session.kernels.packed_around import arrays
from qeff.backends.cuda.session.kernels.packed_decode import (
    BLOCKS,
    POWER,
    block_scale,
    group_numbers,
    group_scales,
)
from qeff.backends.cuda.session.launch import release, settings, wait
from qeff.backends.cuda.session.matrix import Matrix


@dataclass(frozen=True, slots=True)
class ManyPlan:
    """How one product is cut."""

    rows: int
    tokens: int
    warps: int
    stages: int


@triton.jit
def group_sums(
    x, codes, extra, scales, token, x_stride,
    K: tl.constexpr, GROUPS: tl.constexpr, BLOCKS: tl.constexpr, FORMAT: tl.constexpr,
    POWER: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr, STAGES: tl.constexpr,
    IS_SCALED: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Products [rows, tokens] of rows of a matrix, given by their first words, with inputs.

    The sums of a block are scaled, or with ``IS_SCALED`` the numbers, rounded to the inputs' dtype.
    """
    k = tl.arange(0, 32)
    SCALE_WORDS: tl.constexpr = 2 if FORMAT == "q4_0" else 1
    EXTRA: tl.constexpr = 32 if ASM else 16
    EVEN: tl.constexpr = K % (BLOCKS * 32) == 0
    sums = tl.zeros([ROWS, TOKENS], tl.float32)
    for group in tl.range(0, GROUPS, num_stages=STAGES):
        first, second = group_scales(scales + group * SCALE_WORDS, FORMAT)
        numbers = group_numbers(
            codes[:, None] + group * 32, extra[:, None] + group * EXTRA, k[None, :],
            BLOCKS, FORMAT, ASM,
        )  # fmt: skip
        for j in tl.static_range(BLOCKS):
            column = (group * BLOCKS + j) * 32 + k
            place = x + column[:, None] + (token * x_stride)[None, :]
            if EVEN:
                value = tl.load(place)
            else:
                value = tl.load(place, mask=(column < K)[:, None], other=0.0)
            number = numbers[j]
            if POWER != 0:  # exact, and cheaper than to scale the inputs of every program
                number *= 2.0**POWER
            scale = block_scale(first, second, j, FORMAT)[:, None]
            if IS_SCALED:
                number = (number.to(tl.float32) * scale).to(value.dtype)
            if not ASM and x.dtype.element_ty == tl.bfloat16:
                value = value.to(tl.float32)  # the interpreter has no product of bf16
            number = number.to(value.dtype)
            if IS_SCALED:
                sums = tl.dot(number, value, sums, input_precision="ieee")
            else:
                sums += tl.dot(number, value, input_precision="ieee") * scale
    return sums


@triton.jit(do_not_specialize=["tokens"])
def _blocks(
    x, codes, extra, scales, bias, out,
    rows, tokens, x_stride, out_stride, code_stride, extra_stride, scale_stride,
    K: tl.constexpr, GROUPS: tl.constexpr, BLOCKS: tl.constexpr, FORMAT: tl.constexpr,
    POWER: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr, STAGES: tl.constexpr,
    ASM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    release(PDL)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    held = tl.minimum(row, rows - 1).to(tl.int64)
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    held_token = tl.minimum(token, tokens - 1).to(tl.int64)
    wait(PDL)
    acc = group_sums(
        x, codes + held * code_stride, extra + held * extra_stride, scales + held * scale_stride,
        held_token, x_stride, K, GROUPS, BLOCKS, FORMAT, POWER, ROWS, TOKENS, STAGES,
        IS_SCALED=False, ASM=ASM,
    )  # fmt: skip
    if bias is not None:
        acc += tl.load(bias + held).to(tl.float32)[:, None]
    inside = (row < rows)[:, None] & (token < tokens)[None, :]
    place = out + token.to(tl.int64)[None, :] * out_stride + row[:, None]
    tl.store(place, acc.to(out.dtype.element_ty), mask=inside)


def plan_for(matrix: Matrix, tokens: int, dtype: torch.dtype) -> ManyPlan:
    """The plan that measured best for such a product with inputs of this type."""
    if tokens <= 32:
        return ManyPlan(64, 32, 4, 3)
    # Three stages of mxfp6 and f32 are 241 kB, more than a multiprocessor's shared memory.
    is_large = matrix.format == "mxfp6" and dtype is torch.float32
    return ManyPlan(64, 64, 4, 2 if is_large else 3)


def packed_many(
    x: torch.Tensor, matrix: Matrix, out: torch.Tensor, *, bias: torch.Tensor | None = None
) -> None:
    """``out`` [T, rows] = x W^T + bias."""
    launch_many(plan_for(matrix, len(x), x.dtype), x, matrix, out, bias)


def launch_many(
    plan: ManyPlan,
    x: torch.Tensor,
    matrix: Matrix,
    out: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> None:
    """:func:`packed_many` by a plan."""
    tokens, columns = x.shape
    rows = matrix.shape[0]
    assert matrix.shape[1] == columns and out.shape == (tokens, rows), "shapes of the product"
    assert x.stride(1) == 1 and out.stride(1) == 1, "rows lie in one piece"
    if not tokens:
        return
    with_asm = x.is_cuda and x.dtype is torch.bfloat16
    packed = arrays(matrix, torch.int16 if with_asm else torch.int32)
    power = POWER[matrix.format] if with_asm else 0
    _blocks[(triton.cdiv(rows, plan.rows), triton.cdiv(tokens, plan.tokens))](
        x,
        packed.codes,
        packed.extra,
        packed.scales,
        bias,
        out,
        rows,
        tokens,
        x.stride(0),
        out.stride(0),
        packed.code_stride,
        packed.extra_stride,
        packed.scale_stride,
        K=columns,
        GROUPS=packed.groups,
        BLOCKS=BLOCKS[matrix.format],
        FORMAT=matrix.format,
        POWER=power,
        ROWS=plan.rows,
        TOKENS=plan.tokens,
        STAGES=plan.stages,
        ASM=with_asm,
        num_warps=plan.warps,
        **settings(x.device),
    )
