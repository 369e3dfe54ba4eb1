"""Rules for ops that read or write by index."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import sympy
import torch

from qeff.core.errors import UnsupportedModel
from qeff.export.emission.table import arg, aten, overloads, rule
from qeff.export.emitter import DTYPES, Emitter, scope_of
from qeff.export.fxnode import Node
from qeff.export.infer import Kind, broadcast


@rule(aten.embedding.default)
def _embedding(e: Emitter, node: Node) -> ir.Value:
    return e.op("Gather", [e.value(a) for a in node.args[:2]], {"axis": 0}, node=node)


@rule(aten.index_select.default)
def _index_select(e: Emitter, node: Node) -> ir.Value:
    x, axis, index = node.args
    return e.op("Gather", [e.value(x), e.value(index)], {"axis": axis}, node=node)


@rule(aten.gather.default)
def _gather(e: Emitter, node: Node) -> ir.Value:
    x, axis, index = node.args[:3]
    return e.op("GatherElements", [e.value(x), e.value(index)], {"axis": axis}, node=node)


def _scattered(e: Emitter, node: Node, updates: ir.Value, reduction: str = "none") -> ir.Value:
    x, axis, index = node.args[:3]
    attrs = {"axis": axis, "reduction": reduction}
    inputs = [e.tensor(x, e.dtype(node)), e.value(index), updates]
    return e.op("ScatterElements", inputs, attrs, node=node)


@rule(*overloads("scatter", "src"), *overloads("scatter_", "src"))
def _scatter(e: Emitter, node: Node) -> ir.Value:
    return _scattered(e, node, e.tensor(node.args[3], e.dtype(node)))


@rule(*overloads("scatter", "value"), *overloads("scatter_", "value"))
def _scatter_value(e: Emitter, node: Node) -> ir.Value:
    number = e.scalar(node.args[3], e.dtype(node))
    return _scattered(e, node, e.build.expand(number, e.kind(node.args[2]).dims))


@rule(*overloads("scatter_add", "default"), *overloads("scatter_add_", "default"))
def _scatter_add(e: Emitter, node: Node) -> ir.Value:
    return _scattered(e, node, e.tensor(node.args[3], e.dtype(node)), "add")


@rule(aten.index.Tensor)
def _index(e: Emitter, node: Node) -> ir.Value:
    x, places = node.args
    given = [(axis, place) for axis, place in enumerate(places) if place is not None]
    if any(e.dtype(place) == torch.bool for _, place in given):
        raise UnsupportedModel(
            f"{scope_of(node) or 'the model'} picks rows by a mask, so that sizes depend on values"
        )
    if len(given) == 1:
        axis, place = given[0]
        return e.op("Gather", [e.value(x), e.value(place)], {"axis": axis}, node=node)
    if [axis for axis, _ in given] != list(range(len(given))):
        raise UnsupportedModel(
            f"{scope_of(node) or 'the model'} indexes axes that are not the first"
        )
    return e.op("GatherND", [e.value(x), _places(e, [p for _, p in given])], node=node)


def _places(e: Emitter, given: list[Any]) -> ir.Value:
    dims = broadcast([e.kind(place).dims for place in given])
    columns = []
    for place in given:
        wide = e.build.expand(e.tensor(place, torch.int64), dims)
        columns.append(e.build.unsqueeze(wide, [len(dims)]))
    return e.op("Concat", columns, {"axis": len(dims)})


@rule(aten.index_put.default, *overloads("index_put_", "default"))
def _index_put(e: Emitter, node: Node) -> ir.Value:
    x, places, updates = node.args[:3]
    if _fills_by_mask(e, places, updates):
        return _fill_by_mask(e, node)
    if any(place is None or e.dtype(place) == torch.bool for place in places):
        raise UnsupportedModel(f"{scope_of(node) or 'the model'} writes through a mask")
    where = _places(e, list(places))
    rest = e.kind(node).dims[len(places) :]
    values = e.build.expand(
        e.tensor(updates, e.dtype(node)), (*e.build.kind(where).dims[:-1], *rest)
    )
    reduction = "add" if arg(node, 3, "accumulate", False) else "none"
    inputs = [e.tensor(x, e.dtype(node)), where, values]
    return e.op("ScatterND", inputs, {"reduction": reduction}, node=node)


def _fills_by_mask(e: Emitter, places: Any, updates: Any) -> bool:
    """Whether one mask says where one number goes: then no size depends on values."""
    is_mask = len(places) == 1 and places[0] is not None and e.dtype(places[0]) == torch.bool
    return is_mask and updates.meta["val"].numel() == 1


def _fill_by_mask(e: Emitter, node: Node) -> ir.Value:
    x, (mask,), updates = node.args[:3]
    dtype, where = e.dtype(node), e.value(mask)
    rank = len(e.kind(mask).dims)
    rest = list(range(rank, len(e.kind(node).dims)))
    where = e.build.unsqueeze(where, rest) if rest else where
    number = e.build.reshape(e.tensor(updates, dtype), Kind(DTYPES[dtype], ()))
    return e.op("Where", [where, number, e.tensor(x, dtype)], node=node)


@rule(aten.one_hot.default)
def _one_hot(e: Emitter, node: Node) -> ir.Value:
    depth = sympy.Integer(int(e.kind(node).dims[-1]))
    inputs = [e.value(node.args[0]), e.build.const(int(depth)), e.build.const([0, 1])]
    return e.op("OneHot", inputs, {"axis": -1}, node=node)


@rule(aten.masked_select.default, aten.nonzero.default)
def _by_value(e: Emitter, node: Node) -> ir.Value:
    raise UnsupportedModel(
        f"{scope_of(node) or 'the model'} picks rows by a mask, so that sizes depend on values"
    )
