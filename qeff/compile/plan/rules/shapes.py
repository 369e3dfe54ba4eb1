"""Node types that only move axes.

What moves tokens alone disappears; the rest is reshape, transpose or expand of inner axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from qeff.compile.plan import layout as lay
from qeff.compile.plan.constants import Constant
from qeff.compile.plan.lowering import Fixed, Lowered, Lowering, Refusal, Tokens


def _reshape(node: ir.Node, plan: Lowering) -> list[Lowered]:
    """Reshape, Squeeze, Unsqueeze, Flatten: the declared result says all."""
    return [regroup(plan, plan.read(node.inputs[0]), lay.read_dims(node.outputs[0]))]


def _transpose(node: ir.Node, plan: Lowering) -> list[Lowered]:
    x = plan.read_tokens(node.inputs[0])
    perm = list(node.attributes.get_ints("perm", range(len(x.layout))[::-1]))
    return [transpose(plan, x, perm)]


def transpose(plan: Lowering, x: Tokens, perm: Sequence[int]) -> Tokens:
    """The axes in another order; only an order of larger inner axes costs an op."""
    target = tuple(x.layout[axis] for axis in perm)
    first = [0]  # where each axis begins in the inner shape
    for axis in x.layout:
        first.append(first[-1] + len(lay.sizes_of(axis)))
    inner = [
        first[axis] + place for axis in perm for place in range(len(lay.sizes_of(x.layout[axis])))
    ]
    shape = lay.inner_shape(x.layout)
    large = [place for place in inner if shape[place] != 1]
    if large == sorted(large):
        return Tokens(plan.reshape(x.index, lay.inner_shape(target)), target)
    return Tokens(plan.emit("transpose", [x.index], perm=tuple(inner))[0], target)


def _expand(node: ir.Node, plan: Lowering) -> list[Lowered]:
    x = plan.read(node.inputs[0])
    return [expand(plan, x, lay.declared(lay.read_dims(node.outputs[0])))]


def expand(plan: Lowering, x: Lowered, wanted: lay.Layout) -> Lowered:
    """Repeat axes of size one up to a layout; axes that hold tokens keep the order they have."""
    rank = len(wanted)
    have = ((1,),) * (rank - len(x.layout)) + tuple(x.layout)
    target = tuple(
        old if lay.tokens_of(old) else new for old, new in zip(have, wanted, strict=True)
    )
    if isinstance(x, Fixed):
        padded = x.constant.reshape(lay.stored_shape(have))
        return Fixed(padded.expand(lay.stored_shape(target)), target)
    if len(set(tokens := lay.all_tokens(target))) != len(tokens):
        raise lay.LayoutError("repeats tokens")
    index = plan.reshape(x.index, lay.aligned_shape(have, target))
    if lay.inner_shape(target) != plan.shape_of(index):
        (index,) = plan.emit("expand", [index], shape=lay.inner_shape(target))
    return Tokens(index, target)


def _fill(node: ir.Node, plan: Lowering) -> list[Lowered]:
    """ConstantOfShape: a number for each element of a shape that may hold tokens."""
    target = lay.declared(lay.read_dims(node.outputs[0]))
    attribute = node.attributes.get("value")
    number = np.zeros(1, np.float32) if attribute is None else attribute.as_tensor().numpy()
    shape = lay.stored_shape(target)
    constant = Constant(f"fill/{number.dtype}/{number.item()!r}", ir.tensor(number.reshape(())))
    return [Fixed(constant.expand(shape), target)]


def _tile(node: ir.Node, plan: Lowering) -> list[Lowered]:
    """Tile: each axis gets an axis of repeats before it, which is expanded and grouped in again."""
    x = plan.read(node.inputs[0])
    dims = lay.read_dims(node.outputs[0])
    apart: list[lay.Axis] = []
    repeated: list[lay.Axis] = []
    for old, new in zip(x.layout, dims, strict=True):
        size = lay.size_of(old)
        if not size or new.size % size:
            raise Refusal(f"repeats an axis of {size} to {new.size}")
        times = lay.Dim(new.tokens - set(lay.tokens_of(old)), new.size // size)
        apart += [(1,), old]
        repeated += [*lay.declared([times]), old]
    return [regroup(plan, expand(plan, regroup(plan, x, tuple(apart)), tuple(repeated)), dims)]


def regroup(plan: Lowering, x: Lowered, dims: lay.Layout | Sequence[lay.Dim]) -> Lowered:
    """The value under other axes that hold the same elements in the same order."""
    wanted = [dim if isinstance(dim, lay.Dim) else lay.dim_of(dim) for dim in dims]
    target = lay.regroup(x.layout, wanted)
    if isinstance(x, Fixed):
        return Fixed(x.constant.reshape(lay.stored_shape(target)), target)
    return Tokens(plan.reshape(x.index, lay.inner_shape(target)), target)


def _data_only(node: ir.Node) -> Sequence[ir.Value | None]:
    return node.inputs[:1]


def _nothing(node: ir.Node) -> Sequence[ir.Value | None]:
    return ()


RULES: dict[str, Callable[[ir.Node, Lowering], list[Lowered]]] = {
    "ConstantOfShape": _fill,
    "Expand": _expand,
    "Flatten": _reshape,
    "Reshape": _reshape,
    "Squeeze": _reshape,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _reshape,
}
DEMANDS: dict[str, Callable[[ir.Node], Sequence[ir.Value | None]]] = {
    "ConstantOfShape": _nothing,
    "Expand": _data_only,
    "Flatten": _data_only,
    "Reshape": _data_only,
    "Squeeze": _data_only,
    "Tile": _data_only,
    "Unsqueeze": _data_only,
}
