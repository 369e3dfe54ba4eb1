"""Rows of a plain table by index; an index of −1 − i stands for entry i of the tokens chosen last.

Such an index is also replaced where it lies, for whoever reads it later. Knows nothing of packed
tables.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from qeff.backends.cuda.session.launch import release, settings, wait

_WIDTH = 1024


@triton.jit
def own_row(index, chosen, entry, piece, offset, num_rows, RESOLVE: tl.constexpr):
    """The row of an entry; the program of its first piece replaces what stands for another."""
    row = tl.load(index + entry).to(tl.int64)
    if RESOLVE:  # noqa: SIM102 - decided when the kernel is compiled
        if row < 0:
            row = tl.load(chosen + (-1 - row))
            row = tl.maximum(row, 0)  # a row without a choice: what is made of it, nobody reads
            if piece == 0:
                tl.store(index + entry, row)
    return tl.minimum(tl.maximum(row + offset, 0), num_rows - 1)


@triton.jit
def _rows(
    index, chosen, table, out, columns, num_rows, offset,
    RESOLVE: tl.constexpr, WIDTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid: (entries, pieces of a row)."""
    release(PDL)
    wait(PDL)
    entry = tl.program_id(0).to(tl.int64)
    piece = tl.program_id(1)
    row = own_row(index, chosen, entry, piece, offset, num_rows, RESOLVE)
    column = piece * WIDTH + tl.arange(0, WIDTH)
    inside = column < columns
    x = tl.load(table + row * columns + column, mask=inside)
    tl.store(out + entry * columns + column, x.to(out.dtype.element_ty), mask=inside)


def embed_rows(
    table: torch.Tensor,
    index: torch.Tensor,
    offset: int,
    out: torch.Tensor,
    chosen: torch.Tensor | None = None,
) -> None:
    """Rows ``index + offset`` of table [N, columns] into out [entries, columns]."""
    columns = table.shape[1]
    if not len(index):
        return
    width = min(_WIDTH, triton.next_power_of_2(columns))
    _rows[(len(index), triton.cdiv(columns, width))](
        index,
        chosen,
        table,
        out,
        columns,
        len(table),
        offset,
        RESOLVE=chosen is not None,
        WIDTH=width,
        num_warps=4,
        **settings(out.device),
    )


@triton.jit
def _resolve(index, chosen, count, WIDTH: tl.constexpr, PDL: tl.constexpr):
    release(PDL)
    wait(PDL)
    entry = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    inside = entry < count
    token = tl.load(index + entry, mask=inside, other=0)
    is_open = inside & (token < 0)
    token = tl.load(chosen + (-1 - token), mask=is_open, other=0)
    tl.store(index + entry, tl.maximum(token, 0), mask=is_open)


def resolve(index: torch.Tensor, chosen: torch.Tensor) -> None:
    """Replace every −1 − i by entry i of the tokens chosen last."""
    width = 256
    _resolve[(triton.cdiv(len(index), width),)](
        index, chosen, len(index), WIDTH=width, **settings(index.device)
    )
