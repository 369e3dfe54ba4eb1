"""Rows of a packed table by index, as plain floats, in one launch.

An index of −1 − i stands for entry i of the tokens chosen last, and is replaced where it lies, as
in ``embed``. Everything is read behind the kernel before, which may have written the index.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from qeff.backends.cuda.session.kernels.embed import own_row
from qeff.backends.cuda.session.kernels.packed_around import arrays
from qeff.backends.cuda.session.kernels.packed_decode import (
    BLOCKS,
    block_scale,
    group_scales,
    one_block,
)
from qeff.backends.cuda.session.launch import release, settings, wait
from qeff.backends.cuda.session.matrix import Matrix

SPLITS = 4  # groups of a program


@triton.jit
def _packed_rows(
    index, chosen, codes, extra, scales, out,
    rows, columns, offset, code_stride, extra_stride, scale_stride,
    RESOLVE: tl.constexpr, GROUPS: tl.constexpr, BLOCKS: tl.constexpr, FORMAT: tl.constexpr,
    SPLITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid: (entries, pieces of a row)."""
    release(PDL)
    wait(PDL)
    entry = tl.program_id(0).to(tl.int64)
    piece = tl.program_id(1)
    row = own_row(index, chosen, entry, piece, offset, rows, RESOLVE)
    group = piece * SPLITS + tl.arange(0, SPLITS)
    held = tl.minimum(group, GROUPS - 1)
    k = tl.arange(0, 32)
    SCALE_WORDS: tl.constexpr = 2 if FORMAT == "q4_0" else 1
    words_at = codes + row * code_stride + held[:, None] * 32
    extra_at = extra + row * extra_stride + held[:, None] * 16
    first, second = group_scales(scales + row * scale_stride + held * SCALE_WORDS, FORMAT)
    for j in tl.static_range(BLOCKS):
        number = one_block(words_at, extra_at, k[None, :], j, FORMAT)
        number *= block_scale(first, second, j, FORMAT)[:, None]
        column = ((group * BLOCKS + j) * 32)[:, None] + k[None, :]
        place = out + entry * columns + column
        tl.store(place, number.to(out.dtype.element_ty), mask=column < columns)


def embed_packed(
    table: Matrix,
    index: torch.Tensor,
    offset: int,
    out: torch.Tensor,
    chosen: torch.Tensor | None = None,
) -> None:
    """Rows ``index + offset`` of a packed table into out [entries, columns], of any float type."""
    rows, columns = table.shape
    assert out.shape == (len(index), columns) and out.is_contiguous(), "room for every entry"
    if not len(index):
        return
    packed = arrays(table, torch.int32)
    _packed_rows[(len(index), triton.cdiv(packed.groups, SPLITS))](
        index,
        chosen,
        packed.codes,
        packed.extra,
        packed.scales,
        out,
        rows,
        columns,
        offset,
        packed.code_stride,
        packed.extra_stride,
        packed.scale_stride,
        RESOLVE=chosen is not None,
        GROUPS=packed.groups,
        BLOCKS=BLOCKS[table.format],
        FORMAT=table.format,
        SPLITS=SPLITS,
        num_warps=4,
        **settings(out.device),
    )
