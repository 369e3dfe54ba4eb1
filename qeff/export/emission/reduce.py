"""Rules for ops that sum, rank or compare along an axis."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import sympy
import torch

from qeff.export.emission.table import arg, aten, overloads, rule
from qeff.export.emitter import DTYPES, Emitter
from qeff.export.fxnode import Node
from qeff.export.infer import Kind


def reducer(op_type: str) -> Any:
    """A rule for a reduction over some axes, or all."""

    def emit(e: Emitter, node: Node) -> ir.Value:
        axes, keep = arg(node, 1, "dim"), bool(arg(node, 2, "keepdim", False))
        axes = [axes] if isinstance(axes, int) else axes
        inputs = [e.tensor(node.args[0], e.dtype(node))]
        if axes:
            inputs.append(e.build.const(list(axes)))
        return e.op(op_type, inputs, {"keepdims": int(keep)}, node=node)

    return emit


for _targets, _op in (
    ((aten.mean.dim, aten.mean.default), "ReduceMean"),
    ((aten.sum.dim_IntList, aten.sum.default), "ReduceSum"),
    ((aten.amax.default, aten.max.default), "ReduceMax"),
    ((aten.amin.default, aten.min.default), "ReduceMin"),
    ((aten.prod.dim_int,), "ReduceProd"),
    ((aten.logsumexp.default,), "ReduceLogSumExp"),
):
    rule(*_targets)(reducer(_op))


@rule(aten.linalg_vector_norm.default)
def _vector_norm(e: Emitter, node: Node) -> ir.Value:
    order, axes, keep = arg(node, 1, "ord", 2), arg(node, 2, "dim"), arg(node, 3, "keepdim", False)
    assert order in (1, 2), f"a norm of order {order}"
    x, where = e.value(node.args[0]), [e.build.const(list(axes))] if axes else []
    attrs = {"keepdims": int(bool(keep))}
    if order == 1:
        return e.op("ReduceSum", [e.op("Abs", [x]), *where], attrs, node=node)
    return e.op("ReduceL2", [x, *where], attrs, node=node)


@rule(*overloads("std", "dim", "correction"), *overloads("var", "dim", "correction"))
def _spread(e: Emitter, node: Node) -> ir.Value:
    axes, keep = arg(node, 1, "dim"), int(bool(node.kwargs.get("keepdim", arg(node, 3, "keepdim"))))
    unbiased = arg(node, 2, "unbiased", node.kwargs.get("correction", 1))
    x = e.value(node.args[0])
    dims = list(e.build.kind(x).dims)
    count = sympy.Mul(*(dims[axis] for axis in axes))
    for axis in axes:
        dims[axis] = sympy.Integer(1)
    where, wide = e.build.const(list(axes)), Kind(e.build.kind(x).dtype, tuple(dims))
    mean = e.build.op("ReduceMean", [x, where], {"keepdims": 1}, wide)
    rest = e.op("Sub", [x, mean])
    total = e.op("ReduceSum", [e.op("Mul", [rest, rest]), where], {"keepdims": keep}, node=node)
    number = e.scalar(float(count - int(unbiased)), e.dtype(node))
    variance = e.op("Div", [total, number], node=node)
    return e.op("Sqrt", [variance], node=node) if "std" in str(node.target) else variance


@rule(*overloads("any", "default", "dim"))
def _any_(e: Emitter, node: Node) -> ir.Value:
    axes, keep = arg(node, 1, "dim"), bool(arg(node, 2, "keepdim", False))
    kind = Kind(ir.DataType.INT32, e.kind(node).dims)
    inputs = [e.tensor(e_arg, torch.int32) for e_arg in node.args[:1]]
    inputs += [e.build.const([axes])] if axes is not None else []
    most = e.build.op("ReduceMax", inputs, {"keepdims": int(keep)}, kind)
    return e.build.cast(most, ir.DataType.BOOL)


@rule(aten.max.dim, aten.min.dim)
def _extreme(e: Emitter, node: Node) -> tuple[ir.Value, ir.Value]:
    axis, keep = node.args[1], int(bool(arg(node, 2, "keepdim", False)))
    name = "Max" if node.target is aten.max.dim else "Min"
    values, places = (e.kind_of(v) for v in node.meta["val"])
    x = e.value(node.args[0])
    best = e.build.op(f"Reduce{name}", [x, e.build.const([axis])], {"keepdims": keep}, values)
    return best, e.build.op(f"Arg{name}", [x], {"axis": axis, "keepdims": keep}, places)


@rule(aten.argmax.default, aten.argmin.default)
def _argument(e: Emitter, node: Node) -> ir.Value:
    name = "ArgMax" if node.target is aten.argmax.default else "ArgMin"
    attrs = {"axis": arg(node, 1, "dim"), "keepdims": int(bool(arg(node, 2, "keepdim", False)))}
    return e.op(name, [e.value(node.args[0])], attrs, node=node)


@rule(aten.softmax.int, aten._softmax.default)
def _softmax(e: Emitter, node: Node) -> ir.Value:
    x = e.tensor(node.args[0], e.dtype(node))
    return e.op("Softmax", [x], {"axis": node.args[1]}, node=node)


@rule(aten.log_softmax.int, aten._log_softmax.default)
def _log_softmax(e: Emitter, node: Node) -> ir.Value:
    x = e.tensor(node.args[0], e.dtype(node))
    return e.op("LogSoftmax", [x], {"axis": node.args[1]}, node=node)


@rule(aten.cumsum.default)
def _cumsum(e: Emitter, node: Node) -> ir.Value:
    inputs = [e.tensor(node.args[0], e.dtype(node)), e.build.const(node.args[1])]
    return e.op("CumSum", inputs, node=node)


@rule(aten.topk.default)
def _topk(e: Emitter, node: Node) -> tuple[ir.Value, ...]:
    attrs = {"axis": arg(node, 2, "dim", -1), "largest": int(arg(node, 3, "largest", True))}
    kinds = [e.kind_of(value) for value in node.meta["val"]]
    count = e.build.size(e.size(node.args[1]))
    return e.build.op("TopK", [e.value(node.args[0]), count], attrs, kinds)


@rule(*overloads("sort", "default", "stable"))
def _sort(e: Emitter, node: Node) -> tuple[ir.Value, ...]:
    stable = node.target is not aten.sort.default
    axis = node.kwargs.get("dim", -1) if stable else arg(node, 1, "dim", -1)
    down = node.kwargs.get("descending", False) if stable else arg(node, 2, "descending", False)
    kinds = [e.kind_of(value) for value in node.meta["val"]]
    count = e.build.size(kinds[0].dims[axis])
    attrs = {"axis": axis, "largest": int(bool(down))}
    return e.build.op("TopK", [e.value(node.args[0]), count], attrs, kinds)


@rule(aten.argsort.default)
def _argsort(e: Emitter, node: Node) -> ir.Value:
    axis, down = arg(node, 1, "dim", -1), arg(node, 2, "descending", False)
    kind = e.kind(node)
    values = Kind(DTYPES[e.dtype(node.args[0])], kind.dims)
    attrs = {"axis": axis, "largest": int(bool(down))}
    inputs = [e.value(node.args[0]), e.build.size(kind.dims[axis])]
    return e.build.op("TopK", inputs, attrs, [values, kind])[1]
