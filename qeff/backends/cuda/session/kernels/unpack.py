"""All numbers of a packed matrix, written as plain floats for a library's product.

Memory decides: 4 to 8 bits and a share of the scales are read, 16 or 32 bits written for each
number; at 4.3 TB/s the 117 million of a gate and up matrix (8B) take 70 µs from 4 bits to 16.
"""

from __future__ import annotations

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

ROWS = 8  # of a program
SPLITS = 4  # groups of a program


@triton.jit
def _unpack(
    codes, extra, scales, out,
    rows, columns, out_stride, code_stride, extra_stride, scale_stride,
    GROUPS: tl.constexpr, BLOCKS: tl.constexpr, FORMAT: tl.constexpr,
    POWER: tl.constexpr, ROWS: tl.constexpr, SPLITS: tl.constexpr,
    ASM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    release(PDL)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    held_row = tl.minimum(row, rows - 1).to(tl.int64)
    group = tl.program_id(1) * SPLITS + tl.arange(0, SPLITS)
    held = tl.minimum(group, GROUPS - 1)
    # Four columns a lane, as its words hold them: other pieces would have to change lanes.
    k = tl.max_contiguous(tl.arange(0, 32), 4)
    EXTRA: tl.constexpr = 32 if ASM else 16
    words_at = codes + (held_row * code_stride)[:, None, None] + held[None, :, None] * 32
    extra_at = extra + (held_row * extra_stride)[:, None, None] + held[None, :, None] * EXTRA
    SCALE_WORDS: tl.constexpr = 2 if FORMAT == "q4_0" else 1
    scales_at = scales + (held_row * scale_stride)[:, None] + held[None, :] * SCALE_WORDS
    first, second = group_scales(scales_at, FORMAT)
    numbers = group_numbers(words_at, extra_at, k[None, None, :], BLOCKS, FORMAT, ASM)
    wait(PDL)
    for j in tl.static_range(BLOCKS):
        number = numbers[j].to(tl.float32)
        if POWER != 0:
            number *= 2.0**POWER
        number *= block_scale(first, second, j, FORMAT)[:, :, None]
        column = ((group * BLOCKS + j) * 32)[None, :, None] + k[None, None, :]
        place = out + (held_row * out_stride)[:, None, None] + column
        inside = (row < rows)[:, None, None] & (column < columns)
        tl.store(place, number.to(out.dtype.element_ty), mask=inside)


def unpack(matrix: Matrix, out: torch.Tensor) -> None:
    """Write the matrix's numbers into ``out`` [rows, columns], bf16, f16 or f32."""
    rows, columns = matrix.shape
    assert out.shape == (rows, columns) and out.stride(1) == 1, "room for the whole matrix"
    packed = arrays(matrix, torch.int16 if out.is_cuda else torch.int32)
    grid = (triton.cdiv(rows, ROWS), triton.cdiv(packed.groups, SPLITS))
    _unpack[grid](
        packed.codes,
        packed.extra,
        packed.scales,
        out,
        rows,
        columns,
        out.stride(0),
        packed.code_stride,
        packed.extra_stride,
        packed.scale_stride,
        GROUPS=packed.groups,
        BLOCKS=BLOCKS[matrix.format],
        FORMAT=matrix.format,
        POWER=POWER[matrix.format] if out.is_cuda else 0,
        ROWS=ROWS,
        SPLITS=SPLITS,
        ASM=out.is_cuda,
        num_warps=4,
        **settings(out.device),
    )
