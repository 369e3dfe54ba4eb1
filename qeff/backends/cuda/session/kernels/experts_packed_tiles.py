"""Products of many pairs with packed matrices of experts, whose numbers are made in registers.

Cut and walked as in ``experts_tiles``; the weights are the first operand, 32 columns (one block)
at a time. With few pairs the sums of a block are scaled in f32; with many the numbers are, rounded
to the inputs' dtype, which is less work and what an unpacked matrix would hold.
"""

from __future__ import annotations

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
from qeff.backends.cuda.session.kernels.experts_tiles import Cut, own_pairs, own_tile
from qeff.backends.cuda.session.kernels.packed_around import arrays
from qeff.backends.cuda.session.kernels.packed_decode import BLOCKS, POWER
from qeff.backends.cuda.session.kernels.packed_many import group_sums
from qeff.backends.cuda.session.launch import release, settings, wait

SCALED_PAIRS = 64  # of a tile, from which on numbers are scaled and not sums


@triton.jit(do_not_specialize=["num_tiles"])
def _tiles(
    x, codes, extra, scales, bias, out, order, table,
    num_tiles, outputs, rows, chosen, x_stride, out_stride,
    code_stride, extra_stride, scale_stride,
    K: tl.constexpr, GROUPS: tl.constexpr, BLOCKS: tl.constexpr, FORMAT: tl.constexpr,
    POWER: tl.constexpr, PAIRS: tl.constexpr, ROWS: tl.constexpr, IS_SCALED: tl.constexpr,
    STAGES: tl.constexpr, GROUP: tl.constexpr, IS_FIRST: tl.constexpr,
    HOW: tl.constexpr, ACTIVATION: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr,
    ASM: tl.constexpr, PDL: tl.constexpr,
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
        y = group_sums(
            x, codes + row * code_stride, extra + row * extra_stride, scales + row * scale_stride,
            source, x_stride, K, GROUPS, BLOCKS, FORMAT, POWER, ROWS, PAIRS, STAGES, IS_SCALED, ASM,
        )  # fmt: skip
        store_outputs(
            tl.trans(y), bias, row, out, target, is_pair, block, outputs, out_stride,
            PAIRS, ROWS, HOW, ACTIVATION, ALPHA, LIMIT,
        )  # fmt: skip


def packed_tiles(
    x: torch.Tensor,
    stack: Stack,
    gate: Gate,
    out: torch.Tensor,
    pairs: Sorted,
    cut: Cut,
    *,
    is_first: bool,
) -> None:
    """As ``experts_tiles.tiles``, of a packed matrix."""
    matrix = stack.matrix
    assert x.shape[1] == stack.columns and x.stride(1) == out.stride(1) == 1, "rows in one piece"
    assert out.shape[1] * gate.turns == stack.rows, "an output for each row, or for two"
    with_asm = x.is_cuda and x.dtype is torch.bfloat16
    packed = arrays(matrix, torch.int16 if with_asm else torch.int32)
    num_tiles = len(pairs.table)
    _tiles[(num_tiles * triton.cdiv(stack.rows, cut.rows),)](
        x,
        packed.codes,
        packed.extra,
        packed.scales,
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
        packed.code_stride,
        packed.extra_stride,
        packed.scale_stride,
        K=stack.columns,
        GROUPS=packed.groups,
        BLOCKS=BLOCKS[matrix.format],
        FORMAT=matrix.format,
        POWER=POWER[matrix.format] if with_asm else 0,
        PAIRS=pairs.tile,
        ROWS=cut.rows,
        IS_SCALED=pairs.tile >= SCALED_PAIRS,
        STAGES=cut.stages,
        GROUP=cut.group,
        IS_FIRST=is_first,
        ASM=with_asm,
        num_warps=cut.warps,
        **gate.constants(),
        **settings(x.device),
    )
