"""Rules for ops that move axes and sizes: reshape, transpose, slice, join, split, fill."""

from __future__ import annotations

import operator
from typing import Any

import onnx_ir as ir
import sympy
import torch

from qeff.export.emission.table import arg, aten, overloads, rule
from qeff.export.emitter import DTYPES, Emitter
from qeff.export.fxnode import Node
from qeff.export.infer import Kind

END = (1 << 63) - 1


@rule(
    *(aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.view_as.default),
    *(aten.squeeze.dim, aten.squeeze.default, *overloads("squeeze", "dims")),
    *(aten.flatten.using_ints, aten.unflatten.int, aten.reshape_as.default),
)
def _reshape(e: Emitter, node: Node) -> ir.Value:
    return e.build.reshape(e.value(node.args[0]), e.kind(node))


@rule(aten.unsqueeze.default)
def _unsqueeze(e: Emitter, node: Node) -> ir.Value:
    axis = node.args[1] % len(e.kind(node).dims)
    return e.build.unsqueeze(e.value(node.args[0]), [axis])


@rule(aten.expand.default, aten.broadcast_to.default, aten.expand_as.default)
def _expand(e: Emitter, node: Node) -> ir.Value:
    return e.build.expand(e.value(node.args[0]), e.kind(node).dims)


@rule(aten.copy.default)
def _copy(e: Emitter, node: Node) -> ir.Value:
    return e.build.expand(e.tensor(node.args[1], e.dtype(node)), e.kind(node).dims)


def _permuted(e: Emitter, node: Node, perm: list[int]) -> ir.Value:
    return e.op("Transpose", [e.value(node.args[0])], {"perm": perm})


@rule(aten.transpose.int, *overloads("swapaxes", "default"))
def _transpose(e: Emitter, node: Node) -> ir.Value:
    rank = len(e.kind(node).dims)
    perm = list(range(rank))
    a, b = node.args[1] % rank, node.args[2] % rank
    perm[a], perm[b] = perm[b], perm[a]
    return _permuted(e, node, perm)


@rule(aten.t.default, aten.numpy_T.default, *overloads("mT", "default"))
def _matrix_transpose(e: Emitter, node: Node) -> ir.Value:
    rank = len(e.kind(node).dims)
    return _permuted(e, node, [*range(rank - 2), rank - 1, rank - 2] if rank > 1 else [0])


@rule(aten.permute.default)
def _permute(e: Emitter, node: Node) -> ir.Value:
    rank = len(e.kind(node).dims)
    return _permuted(e, node, [axis % rank for axis in node.args[1]])


@rule(aten.movedim.int)
def _movedim(e: Emitter, node: Node) -> ir.Value:
    rank = len(e.kind(node).dims)
    source, target = node.args[1] % rank, node.args[2] % rank
    order = [axis for axis in range(rank) if axis != source]
    order.insert(target, source)
    return _permuted(e, node, order)


def _place(e: Emitter, bound: Any) -> ir.Value:
    return e.build.size(e.size(bound))


@rule(aten.slice.Tensor)
def _slice_(e: Emitter, node: Node) -> ir.Value:
    x = e.value(node.args[0])
    axis = arg(node, 1, "dim", 0) % len(e.kind(node).dims)
    start, stop, step = arg(node, 2, "start"), arg(node, 3, "end"), arg(node, 4, "step", 1)
    if step == 1 and e.build.kind(x).dims[axis] == e.kind(node).dims[axis]:
        return x
    places = [_place(e, 0 if start is None else start), _place(e, END if stop is None else stop)]
    more = [e.build.const([axis]), *([e.build.const([step])] if step != 1 else [])]
    return e.op("Slice", [x, *places, *more], node=node)


@rule(aten.narrow.default)
def _narrow(e: Emitter, node: Node) -> ir.Value:
    x, axis, start, length = node.args
    places = [_place(e, start), e.build.size(e.size(start) + e.size(length)), e.build.const([axis])]
    return e.op("Slice", [e.value(x), *places], node=node)


@rule(aten.slice_scatter.default)
def _slice_scatter(e: Emitter, node: Node) -> ir.Value:
    x, source = node.args[:2]
    axis = arg(node, 2, "dim", 0) % len(e.kind(node).dims)
    start, stop = arg(node, 3, "start") or 0, arg(node, 4, "end")
    size = e.kind(node).dims[axis]
    part = e.tensor(source, e.dtype(node))
    if start == 0 and e.build.kind(part).dims[axis] == size:
        return part
    assert size.is_Integer, "a part of an axis of unknown size is overwritten"
    step = arg(node, 5, "step", 1)
    first, last, _ = slice(start, stop).indices(int(size))
    if step != 1:
        return _mixed(e, node, part, range(first, last, step))
    pieces = [part]
    if first > 0:
        pieces.insert(0, _piece(e, e.value(x), axis, 0, first))
    if last < size:
        pieces.append(_piece(e, e.value(x), axis, last, int(size)))
    return e.op("Concat", pieces, {"axis": axis}, node=node)


def _mixed(e: Emitter, node: Node, part: ir.Value, places: range) -> ir.Value:
    """The node's first argument with rows of ``part`` at some places: one list, then a choice."""
    axis = arg(node, 2, "dim", 0) % len(e.kind(node).dims)
    size = int(e.kind(node).dims[axis])
    rows = list(range(size))
    for i, place in enumerate(places):
        rows[place] = size + i
    both = e.op("Concat", [e.value(node.args[0]), part], {"axis": axis})
    return e.op("Gather", [both, e.build.const(rows)], {"axis": axis}, node=node)


def _piece(e: Emitter, x: ir.Value, axis: int, start: int, stop: int) -> ir.Value:
    kind = e.build.kind(x)
    dims = (*kind.dims[:axis], sympy.Integer(stop - start), *kind.dims[axis + 1 :])
    places = [e.build.const([i]) for i in (start, stop, axis)]
    return e.build.op("Slice", [x, *places], kind=Kind(kind.dtype, dims))


@rule(aten.select_scatter.default)
def _select_scatter(e: Emitter, node: Node) -> ir.Value:
    x, source, axis, place = node.args
    dims = e.kind(node).dims
    axis %= len(dims)
    assert dims[axis].is_Integer, "a row of an axis of unknown size is overwritten"
    size = int(dims[axis])
    place %= size
    pieces = [e.build.unsqueeze(e.tensor(source, e.dtype(node)), [axis])]
    if place > 0:
        pieces.insert(0, _piece(e, e.value(x), axis, 0, place))
    if place + 1 < size:
        pieces.append(_piece(e, e.value(x), axis, place + 1, size))
    return e.op("Concat", pieces, {"axis": axis}, node=node)


@rule(aten.select.int)
def _select(e: Emitter, node: Node) -> ir.Value:
    x, axis, place = node.args
    size = e.size(place)
    where = e.build.const(int(size)) if size.is_Integer else e.build.scalar_size(size)
    return e.op("Gather", [e.value(x), where], {"axis": axis}, node=node)


@rule(aten.cat.default, aten.concat.default)
def _cat(e: Emitter, node: Node) -> ir.Value:
    parts = [a for a in node.args[0] if tuple(a.meta["val"].shape) != (0,)]
    values = [e.tensor(a, e.dtype(node)) for a in parts]
    return e.op("Concat", values, {"axis": arg(node, 1, "dim", 0)}, node=node)


@rule(aten.stack.default)
def _stack(e: Emitter, node: Node) -> ir.Value:
    axis = arg(node, 1, "dim", 0) % len(e.kind(node).dims)
    parts = [e.build.unsqueeze(e.tensor(a, e.dtype(node)), [axis]) for a in node.args[0]]
    return e.op("Concat", parts, {"axis": axis}, node=node)


@rule(aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default, aten.split.sizes)
def _split(e: Emitter, node: Node) -> tuple[ir.Value, ...]:
    axis = arg(node, 2, "dim", 0)
    kinds = [e.kind_of(value) for value in node.meta["val"]]
    if len(kinds) == 1:
        return (e.value(node.args[0]),)
    sizes = e.build.shape([kind.dims[axis] for kind in kinds])
    return e.build.op("Split", [e.value(node.args[0]), sizes], {"axis": axis}, kinds)


@rule(aten.unbind.int)
def _unbind(e: Emitter, node: Node) -> tuple[ir.Value, ...]:
    axis = arg(node, 1, "dim", 0)
    out = []
    for i, value in enumerate(node.meta["val"]):
        inputs = [e.value(node.args[0]), e.build.const(i)]
        out.append(e.build.op("Gather", inputs, {"axis": axis}, e.kind_of(value)))
    return tuple(out)


@rule(operator.getitem)
def _getitem(e: Emitter, node: Node) -> Any:
    return e.value(node.args[0])[node.args[1]]


def _filled(e: Emitter, node: Node, number: Any) -> ir.Value:
    return e.build.expand(e.tensor(number, e.dtype(node)), e.kind(node).dims)


@rule(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def _ones(e: Emitter, node: Node) -> ir.Value:
    return _filled(e, node, 1)


@rule(
    *(aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default),
    *(aten.new_empty.default, aten.empty.memory_format, aten.empty_like.default),
)
def _zeros(e: Emitter, node: Node) -> ir.Value:
    return _filled(e, node, 0)


@rule(aten.full.default, aten.full_like.default)
def _full(e: Emitter, node: Node) -> ir.Value:
    return _filled(e, node, node.args[1])


@rule(aten.new_full.default)
def _new_full(e: Emitter, node: Node) -> ir.Value:
    return _filled(e, node, node.args[2])


@rule(aten.scalar_tensor.default, *overloads("fill", "Scalar", "Tensor"))
def _scalar_tensor(e: Emitter, node: Node) -> ir.Value:
    return _filled(e, node, node.args[-1])


@rule(*overloads("arange", "default", "start", "start_step"))
def _arange(e: Emitter, node: Node) -> ir.Value:
    bounds = [0, *node.args] if len(node.args) == 1 else list(node.args)
    start, stop, step = (*bounds, 1)[:3]
    dtype = e.dtype(node) if e.dtype(node).is_floating_point else torch.int64
    limits = [e.tensor(bound, dtype) for bound in (start, stop, step)]
    kind = Kind(DTYPES[dtype], e.kind(node).dims)
    return e.build.cast(e.build.op("Range", limits, kind=kind), DTYPES[e.dtype(node)])


@rule(aten.repeat.default, *overloads("tile", "default"))
def _repeat(e: Emitter, node: Node) -> ir.Value:
    x = e.value(node.args[0])
    before = e.build.kind(x)
    pad = (sympy.Integer(1),) * (len(node.args[1]) - len(before.dims))
    x = e.build.reshape(x, Kind(before.dtype, (*pad, *before.dims)))
    times = e.build.shape([e.size(count) for count in node.args[1]])
    return e.op("Tile", [x, times], node=node)


@rule(aten.repeat_interleave.self_int)
def _repeat_interleave(e: Emitter, node: Node) -> ir.Value:
    x, count = e.value(node.args[0]), sympy.Integer(node.args[1])
    kind = e.build.kind(x)
    axis = arg(node, 2, "dim") % len(kind.dims)
    wide = e.build.unsqueeze(x, [axis + 1])
    wide = e.build.expand(wide, (*kind.dims[: axis + 1], count, *kind.dims[axis + 1 :]))
    return e.build.reshape(wide, e.kind(node))


@rule(aten.constant_pad_nd.default, *overloads("pad", "default"))
def _pad(e: Emitter, node: Node) -> ir.Value:
    x, amounts = node.args[:2]
    rank = len(e.kind(node).dims)
    before, after = [sympy.Integer(0)] * rank, [sympy.Integer(0)] * rank
    for i in range(len(amounts) // 2):
        before[rank - 1 - i] = e.size(amounts[2 * i])
        after[rank - 1 - i] = e.size(amounts[2 * i + 1])
    number = node.args[2] if len(node.args) > 2 and not isinstance(node.args[2], str) else None
    fill = e.scalar(number or node.kwargs.get("value") or 0, e.dtype(node))
    return e.op("Pad", [e.value(x), e.build.shape([*before, *after]), fill], node=node)


@rule(aten.tril.default, aten.triu.default)
def _triangle(e: Emitter, node: Node) -> ir.Value:
    upper = int(node.target is aten.triu.default)
    inputs = [e.value(node.args[0]), e.build.const(arg(node, 1, "diagonal", 0))]
    return e.op("Trilu", inputs, {"upper": upper}, node=node)
