"""Products of few pairs of token and expert with packed matrices, without sorting them.

By tensor cores as in ``packed_one``: 32 columns (one block) at a time, the blocks of a group side
by side. Every pair has a result of its own, which ``experts_sum`` adds up. Takes bf16 inputs, which
the numbers fit exactly.
"""

from __future__ import annotations

from typing import Any

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
from qeff.backends.cuda.session.kernels.experts_pairs import PairCut
from qeff.backends.cuda.session.kernels.packed_around import arrays
from qeff.backends.cuda.session.kernels.packed_decode import BLOCKS, POWER
from qeff.backends.cuda.session.kernels.packed_few import INPUT_POWER
from qeff.backends.cuda.session.kernels.packed_one import block_sums, scale_number
from qeff.backends.cuda.session.launch import release, settings, wait


@triton.jit
def _sums(
    x, codes, extra, scales, row, code_stride, extra_stride, scale_stride,
    K: tl.constexpr, GROUPS: tl.constexpr, BLOCKS: tl.constexpr, FORMAT: tl.constexpr,
    SHIFT: tl.constexpr, ROWS: tl.constexpr, SPLITS: tl.constexpr, STAGES: tl.constexpr,
    ASM: tl.constexpr,
):  # fmt: skip
    """Products [rows] of the inputs at ``x`` with the matrix's rows."""
    EXTRA: tl.constexpr = 32 if ASM else 16
    split = tl.arange(0, SPLITS)
    block = tl.arange(0, 8)[None, None, :]
    k = tl.arange(0, 32)[None, :, None]
    row = row[None, :, None]
    sums = tl.zeros([SPLITS, ROWS, 8], tl.float32)
    for start in tl.range(0, GROUPS, SPLITS, num_stages=STAGES):
        place = start + split
        # Groups behind the last meet inputs of zero; what is read there must only exist.
        group = tl.minimum(place, GROUPS - 1)[:, None, None]
        column = (group * BLOCKS + block) * 32 + k
        inside = (block < BLOCKS) & (column < K) & (place < GROUPS)[:, None, None]
        values = tl.load(x + column, mask=inside, other=0.0)
        if SHIFT != 0:
            values = (values.to(tl.float32) * (2.0**SHIFT)).to(tl.bfloat16)
        some = block_sums(
            values, codes + row * code_stride + group * 32,
            extra + row * extra_stride + group * EXTRA, BLOCKS, FORMAT, ASM, ROWS, SPLITS,
        )  # fmt: skip
        raw = tl.load(scales + row * scale_stride + group * BLOCKS + block % BLOCKS)
        sums += some * scale_number(raw, FORMAT)
    return tl.sum(tl.sum(sums, 2), 0)


@triton.jit
def _pairs(
    x, codes, extra, scales, bias, index, out,
    experts, outputs, rows, chosen, x_stride, index_stride, out_stride,
    code_stride, extra_stride, scale_stride,
    K: tl.constexpr, GROUPS: tl.constexpr, BLOCKS: tl.constexpr, FORMAT: tl.constexpr,
    POWER: tl.constexpr, SHIFT: tl.constexpr, ROWS: tl.constexpr, SPLITS: tl.constexpr,
    STAGES: tl.constexpr, PER_ROW: tl.constexpr,
    HOW: tl.constexpr, ACTIVATION: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr,
    ASM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """An input has ``PER_ROW`` pairs."""
    release(PDL)
    pair = tl.program_id(0)
    block = tl.program_id(1)
    own = own_rows(block * ROWS + tl.arange(0, ROWS), outputs, HOW)
    wait(PDL)
    row = chosen_expert(index, pair, chosen, index_stride, experts) * rows + own
    y = _sums(
        x + (pair // PER_ROW).to(tl.int64) * x_stride, codes, extra, scales, row,
        code_stride, extra_stride, scale_stride,
        K, GROUPS, BLOCKS, FORMAT, SHIFT, ROWS, SPLITS, STAGES, ASM,
    )  # fmt: skip
    if POWER != SHIFT:
        y *= 2.0 ** (POWER - SHIFT)
    one = tl.arange(0, 1)
    store_outputs(
        tl.reshape(y, [1, ROWS]), bias, row, out, pair.to(tl.int64) + one, one == 0,
        block, outputs, out_stride, 1, ROWS, HOW, ACTIVATION, ALPHA, LIMIT,
    )  # fmt: skip


def packed_pairs(
    x: torch.Tensor, stack: Stack, gate: Gate, index: torch.Tensor, out: torch.Tensor, cut: PairCut
) -> None:
    """Out [pairs, …] = the gated product of each pair's input with its expert's rows.

    ``x`` has a row for each token or for each pair; ``index`` [tokens, chosen] are the experts.
    """
    operands, constants = _operands(stack, cut, x)
    arrays_of, strides = operands[:3], operands[3:]
    _pairs[(len(out), triton.cdiv(stack.rows, cut.rows))](
        x,
        *arrays_of,
        stack.bias,
        index,
        out,
        *pair_sizes(x, stack, gate, index, out),
        *strides,
        PER_ROW=len(out) // len(x),
        **gate.constants(),
        **constants,
    )


def _operands(
    stack: Stack, cut: PairCut, x: torch.Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Three arrays and their strides, and the constants of a product."""
    matrix = stack.matrix
    assert x.dtype is torch.bfloat16 and matrix.scales is not None, "bf16 and packed weights"
    packed = arrays(matrix, torch.int16 if x.is_cuda else torch.int32)
    power = POWER[matrix.format] if x.is_cuda else 0
    operands = (
        packed.codes,
        packed.extra,
        matrix.scales,
        packed.code_stride,
        packed.extra_stride,
        matrix.scales.stride(0),
    )
    constants = {
        "K": stack.columns,
        "GROUPS": packed.groups,
        "BLOCKS": BLOCKS[matrix.format],
        "FORMAT": matrix.format,
        "POWER": power,
        "SHIFT": INPUT_POWER if power else 0,
        "ROWS": cut.rows,
        "SPLITS": cut.columns,
        "STAGES": cut.stages,
        "ASM": x.is_cuda,
        "num_warps": cut.warps,
        **settings(x.device),
    }
    return operands, constants
