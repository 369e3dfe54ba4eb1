"""Node types that look along one axis: reductions, softmax, running sums, the best k."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from qeff.compile.plan import layout as lay
from qeff.compile.plan.lowering import Lowered, Lowering, Refusal, Tokens
from qeff.compile.plan.rules.elementwise import apply

_REDUCE = {
    "ReduceMax": "max",
    "ReduceMean": "mean",
    "ReduceMin": "min",
    "ReduceProd": "prod",
    "ReduceSum": "sum",
}


def _axes(node: ir.Node, plan: Lowering, x: Tokens) -> list[int]:
    """The axes that a reduction works over, in the graph's numbering."""
    rank = len(x.layout)
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        axes = plan.numbers(node.inputs[1])
    else:
        axes = list(node.attributes.get_ints("axes", []))
    if not axes and not node.attributes.get_int("noop_with_empty_axes", 0):
        axes = list(range(rank))
    return [axis % rank for axis in axes]


def _reduced(plan: Lowering, node: ir.Node, x: Tokens, function: str) -> Tokens:
    axes = _axes(node, plan, x)
    if not axes:
        return x
    is_kept = bool(node.attributes.get_int("keepdims", 1))
    if len(axes) == 1 and x.layout[axes[0]] == ("S",) and function in ("max", "min"):
        (index,) = plan.emit("reduce_span", [x.index], function=function)
    else:
        inner = tuple(lay.inner_axis(x.layout, axis) for axis in axes)
        (index,) = plan.emit("reduce", [x.index], function=function, axes=inner, keepdims=is_kept)
    target = tuple(
        (1,) if place in axes else axis
        for place, axis in enumerate(x.layout)
        if is_kept or place not in axes
    )
    return Tokens(plan.reshape(index, lay.inner_shape(target)), target)


def _reduce(function: str) -> Callable[[ir.Node, Lowering], list[Lowered]]:
    def rule(node: ir.Node, plan: Lowering) -> list[Lowered]:
        return [_reduced(plan, node, plan.read_tokens(node.inputs[0]), function)]

    return rule


def _norm_l2(node: ir.Node, plan: Lowering) -> list[Lowered]:
    squares = apply(plan, "square", plan.read_tokens(node.inputs[0]))
    return [apply(plan, "sqrt", _reduced(plan, node, squares, "sum"))]


def _sum_square(node: ir.Node, plan: Lowering) -> list[Lowered]:
    squares = apply(plan, "square", plan.read_tokens(node.inputs[0]))
    return [_reduced(plan, node, squares, "sum")]


def _softmax(node: ir.Node, plan: Lowering) -> list[Lowered]:
    x = plan.read_tokens(node.inputs[0])
    axis = lay.inner_axis(x.layout, node.attributes.get_int("axis", -1))
    result = Tokens(plan.emit("softmax", [x.index], axis=axis)[0], x.layout)
    return [apply(plan, "log", result) if node.op_type == "LogSoftmax" else result]


def _cumsum(node: ir.Node, plan: Lowering) -> list[Lowered]:
    x = plan.read_tokens(node.inputs[0])
    if node.attributes.get_int("exclusive", 0) or node.attributes.get_int("reverse", 0):
        raise Refusal("sums backwards or without the element itself")
    axis = lay.inner_axis(x.layout, plan.numbers(node.inputs[1])[0])
    return [Tokens(plan.emit("cumsum", [x.index], axis=axis)[0], x.layout)]


def _topk(node: ir.Node, plan: Lowering) -> list[Lowered]:
    x = plan.read_tokens(node.inputs[0])
    axis = node.attributes.get_int("axis", -1)
    (k,) = plan.numbers(node.inputs[1])
    is_largest = bool(node.attributes.get_int("largest", 1))
    outputs = plan.emit(
        "topk", [x.index], k=k, axis=lay.inner_axis(x.layout, axis), largest=is_largest
    )
    target = lay.replace_axis(x.layout, axis, k)
    return [Tokens(index, target) for index in outputs]


def _best(node: ir.Node, plan: Lowering) -> list[Lowered]:
    """ArgMax and ArgMin: where the best one lies."""
    x = plan.read_tokens(node.inputs[0])
    axis = node.attributes.get_int("axis", 0) % len(x.layout)
    if node.attributes.get_int("select_last_index", 0):
        raise Refusal("takes the last of equal elements")
    inner = lay.inner_axis(x.layout, axis)
    _, index = plan.emit("topk", [x.index], k=1, axis=inner, largest=node.op_type == "ArgMax")
    target = lay.replace_axis(x.layout, axis, 1)
    if not node.attributes.get_int("keepdims", 1):
        target = (*target[:axis], *target[axis + 1 :])
    return [Tokens(plan.reshape(index, lay.inner_shape(target)), target)]


RULES: dict[str, Callable[[ir.Node, Lowering], list[Lowered]]] = {
    **{op_type: _reduce(function) for op_type, function in _REDUCE.items()},
    "ArgMax": _best,
    "ArgMin": _best,
    "CumSum": _cumsum,
    "LogSoftmax": _softmax,
    "ReduceL2": _norm_l2,
    "ReduceSumSquare": _sum_square,
    "Softmax": _softmax,
    "TopK": _topk,
}
