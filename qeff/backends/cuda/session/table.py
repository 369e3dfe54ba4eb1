"""Rows of a matrix by index, in the compute type, whatever the matrix's format.

Knows nothing of tokens but that some of them may be known to the device alone.
"""

from __future__ import annotations

import torch

from qeff.backends.cuda.session.kernels.embed import embed_rows, resolve
from qeff.backends.cuda.session.kernels.embed_packed import embed_packed
from qeff.backends.cuda.session.kernels.unpack import unpack
from qeff.backends.cuda.session.matrix import Matrix


def look_up(
    table: Matrix,
    index: torch.Tensor,
    offset: int,
    out: torch.Tensor,
    chosen: torch.Tensor | None = None,
) -> None:
    """Rows into out [entries, columns]; with ``chosen`` an index of −1 − i is its entry i."""
    if table.is_plain:
        embed_rows(table.codes, index, offset, out, chosen)
    elif table.format != "fp8":
        embed_packed(table, index, offset, out, chosen)
    else:
        if chosen is not None:
            resolve(index, chosen)
        _look_up_fp8(table, (index + offset).long(), out)


def _look_up_fp8(table: Matrix, index: torch.Tensor, out: torch.Tensor) -> None:
    assert table.scales is not None, "fp8 has a scale for each row"
    codes = table.codes.view(torch.uint8).index_select(0, index)  # no indexing of e4m3
    scales = table.scales.index_select(0, index)
    out.copy_(codes.view(table.codes.dtype).to(torch.float32) * scales[:, None])


def write_floats(matrix: Matrix, out: torch.Tensor) -> None:
    """All numbers of a matrix as plain floats."""
    if matrix.is_plain:
        out.copy_(matrix.codes)
    elif matrix.format == "fp8":
        assert matrix.scales is not None, "fp8 has a scale for each row"
        out.copy_(matrix.codes.to(torch.float32) * matrix.scales[:, None])
    elif len(out):
        unpack(matrix, out)
