"""Ops that move elements without computing: views where torch has them, copies elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import torch

from qeff.backends.cuda.session.generic import DTYPES, Call

Tensor = torch.Tensor


def reshape(call: Call) -> list[Tensor]:
    """Another inner shape."""
    x = call.given(0)
    return [x.reshape(len(x), *call.attrs["shape"])]


def transpose(call: Call) -> list[Tensor]:
    """Inner axes in another order."""
    return [call.given(0).permute(0, *(axis + 1 for axis in call.attrs["perm"]))]


def expand(call: Call) -> list[Tensor]:
    """Axes of size one repeated."""
    x = call.given(0)
    return [x.expand(len(x), *call.attrs["shape"])]


def slice_(call: Call) -> list[Tensor]:
    """A stretch of one axis."""
    attrs = call.attrs
    before = (slice(None),) * (attrs["axis"] + 1)
    return [call.given(0)[(*before, slice(attrs["start"], attrs["stop"], attrs.get("step", 1)))]]


def concat(call: Call) -> list[Tensor]:
    """One after the other; a weight is the same for each token."""
    tensors = [x for x in call.inputs if x is not None]
    rank = max(x.dim() for x in tensors)
    first = next(x for x in tensors if x.dim() == rank)
    parts = [
        (x if x.dim() == rank else x.expand(len(first), *x.shape)).to(_kind(first, call))
        for x in tensors
    ]
    return [torch.cat(parts, call.attrs["axis"] + 1)]


def _kind(x: Tensor, call: Call) -> torch.dtype:
    return call.like if x.is_floating_point() else x.dtype


def gather(call: Call) -> list[Tensor]:
    """Elements that an index names along an axis."""
    return [torch.gather(call.given(0), call.attrs["axis"] + 1, call.given(1).long())]


def scatter(call: Call) -> list[Tensor]:
    """Elements set or added where an index says."""
    x, index, update = call.given(0), call.given(1).long(), call.given(2)
    if x.dim() < index.dim():
        x = x.expand(len(index), *x.shape)
    if update.dim() < index.dim():
        update = update.expand(len(index), *update.shape)
    kind = _kind(x, call)
    x, update, axis = x.to(kind), update.to(kind), call.attrs["axis"] + 1
    if call.attrs["function"] == "add":
        return [torch.scatter_add(x, axis, index, update)]
    return [torch.scatter(x, axis, index, update)]


def embed(call: Call) -> list[Tensor]:
    """Rows of a table of whole numbers or truths."""
    table, index = call.given(0), call.given(1).long() + call.attrs["offset"]
    made = table.index_select(0, index.reshape(-1)).unflatten(0, index.shape)
    return [made.to(DTYPES[call.attrs["dtype"]])]


def gather_rows(call: Call) -> list[Tensor]:
    """The tokens whose logits are wanted."""
    return [call.given(0).index_select(0, call.info.rows[: call.info.num_rows])]


MOVES: dict[str, Callable[[Call], list[Tensor]]] = {
    "reshape": reshape,
    "transpose": transpose,
    "expand": expand,
    "slice": slice_,
    "concat": concat,
    "gather": gather,
    "scatter": scatter,
    "gather_rows": gather_rows,
}
