"""Rules for ops that work element by element.

Arithmetic, comparisons, activations, choices between two values, and casts.
"""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir
import torch

from qeff.export.emission.table import arg, aten, overloads, rule
from qeff.export.emitter import Emitter
from qeff.export.fxnode import Node

COMPARISONS = {"Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"}


@rule(
    *(aten.contiguous.default, aten.clone.default, aten.alias.default, aten.detach.default),
    *(aten.dropout.default, aten.lift_fresh_copy.default, aten.detach_.default),
    *(aten.native_dropout.default, aten.feature_dropout.default),
)
def _same(e: Emitter, node: Node) -> Any:
    return e.value(node.args[0])


@rule(
    *(aten.to.dtype, aten.to.device, aten.to.dtype_layout, aten.to.other),
    *(aten._to_copy.default, aten.type_as.default),
)
def _cast(e: Emitter, node: Node) -> ir.Value:
    return e.tensor(node.args[0], e.dtype(node))


def _operand_dtype(e: Emitter, node: Node) -> torch.dtype:
    values = [a.meta["val"] if isinstance(a, Node) else a for a in node.args[:2]]
    return torch.result_type(*values)


def _is_number(e: Emitter, value: Any, number: float) -> bool:
    return not isinstance(value, Node) and value == number


def binary(op_type: str) -> Any:
    """A rule for a broadcasting op of two operands."""

    def emit(e: Emitter, node: Node) -> ir.Value:
        left, right = node.args[:2]
        dtype = _operand_dtype(e, node) if op_type in COMPARISONS else e.dtype(node)
        neutral = {"Mul": 1, "Div": 1, "Add": 0, "Sub": 0}.get(op_type)
        if neutral is not None and _is_number(e, right, neutral):
            return e.build.expand(e.tensor(left, dtype), e.kind(node).dims)
        second = e.tensor(right, dtype)
        if (alpha := node.kwargs.get("alpha", 1)) != 1:
            second = e.op("Mul", [second, e.scalar(alpha, dtype)])
        return e.op(op_type, [e.tensor(left, dtype), second], node=node)

    return emit


for _names, _op in (
    (("add",), "Add"),
    (("sub", "subtract"), "Sub"),
    (("mul", "multiply"), "Mul"),
    (("div", "divide", "true_divide"), "Div"),
):
    for _name in _names:
        rule(*overloads(_name, "Tensor", "Scalar"))(binary(_op))
for _name, _op in {
    "eq": "Equal",
    "lt": "Less",
    "gt": "Greater",
    "le": "LessOrEqual",
    "ge": "GreaterOrEqual",
}.items():
    rule(*overloads(_name, "Tensor", "Scalar"))(binary(_op))
for _name, _op in {"and": "And", "or": "Or", "xor": "Xor"}.items():
    rule(
        *overloads(f"bitwise_{_name}", "Tensor"),
        *overloads(f"logical_{_name}", "default"),
        *overloads(f"__{_name}__", "Tensor"),
    )(binary(_op))
rule(aten.minimum.default, aten.min.other)(binary("Min"))
rule(aten.maximum.default, aten.max.other)(binary("Max"))
rule(*overloads("pow", "Scalar", "Tensor_Tensor"))(binary("Pow"))


@rule(*overloads("ne", "Tensor", "Scalar"))
def _not_equal(e: Emitter, node: Node) -> ir.Value:
    dtype = _operand_dtype(e, node)
    equal = e.op("Equal", [e.tensor(a, dtype) for a in node.args[:2]])
    return e.op("Not", [equal], node=node)


@rule(*overloads("rsub", "Scalar", "Tensor"))
def _reversed_sub(e: Emitter, node: Node) -> ir.Value:
    dtype = e.dtype(node)
    return e.op("Sub", [e.tensor(node.args[1], dtype), e.tensor(node.args[0], dtype)], node=node)


@rule(aten.bitwise_not.default, aten.logical_not.default)
def _negation(e: Emitter, node: Node) -> ir.Value:
    return e.op("Not", [e.tensor(node.args[0], torch.bool)], node=node)


def _floor_div(e: Emitter, node: Node) -> ir.Value:
    dtype = e.dtype(node)
    left, right = (e.tensor(a, dtype) for a in node.args[:2])
    if dtype.is_floating_point:
        return e.op("Floor", [e.op("Div", [left, right])], node=node)
    # ONNX divides integers towards zero; subtracting the remainder first makes it the floor.
    rest = e.op("Mod", [left, right])
    return e.op("Div", [e.op("Sub", [left, rest]), right], node=node)


rule(aten.floor_divide.default)(_floor_div)


@rule(*overloads("div", "Tensor_mode", "Scalar_mode"))
def _divide_rounded(e: Emitter, node: Node) -> ir.Value:
    mode = node.kwargs.get("rounding_mode")
    if mode == "floor":
        return _floor_div(e, node)
    dtype = e.dtype(node)
    ratio = e.op("Div", [e.tensor(a, dtype) for a in node.args[:2]], node=node)
    if mode is None or not dtype.is_floating_point:
        return ratio
    size = e.op("Floor", [e.op("Abs", [ratio])])
    return e.op("Mul", [e.op("Sign", [ratio]), size], node=node)


@rule(*overloads("remainder", "Scalar", "Tensor"))
def _remainder(e: Emitter, node: Node) -> ir.Value:
    dtype = e.dtype(node)
    left, right = (e.tensor(a, dtype) for a in node.args[:2])
    if not dtype.is_floating_point:
        return e.op("Mod", [left, right], node=node)
    whole = e.op("Floor", [e.op("Div", [left, right])])
    return e.op("Sub", [left, e.op("Mul", [whole, right])], node=node)


def unary(op_type: str) -> Any:
    """A rule for an op of one operand."""

    def emit(e: Emitter, node: Node) -> ir.Value:
        return e.op(op_type, [e.tensor(node.args[0], e.dtype(node))], node=node)

    return emit


for _name, _op in {
    "cos": "Cos",
    "sin": "Sin",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "relu": "Relu",
    "exp": "Exp",
    "sqrt": "Sqrt",
    "neg": "Neg",
    "reciprocal": "Reciprocal",
    "log": "Log",
    "floor": "Floor",
    "ceil": "Ceil",
    "abs": "Abs",
    "erf": "Erf",
    "sign": "Sign",
    "silu": "Swish",
    "isnan": "IsNaN",
    "round": "Round",
    "mish": "Mish",
}.items():
    rule(getattr(aten, _name).default)(unary(_op))
rule(aten.relu_.default)(unary("Relu"))
rule(aten.silu_.default)(unary("Swish"))


@rule(aten.square.default)
def _square(e: Emitter, node: Node) -> ir.Value:
    x = e.value(node.args[0])
    return e.op("Mul", [x, x], node=node)


@rule(aten.rsqrt.default)
def _rsqrt(e: Emitter, node: Node) -> ir.Value:
    return e.op("Reciprocal", [e.op("Sqrt", [e.value(node.args[0])])], node=node)


@rule(aten.log1p.default)
def _log1p(e: Emitter, node: Node) -> ir.Value:
    more = e.op("Add", [e.value(node.args[0]), e.scalar(1.0, e.dtype(node))])
    return e.op("Log", [more], node=node)


@rule(aten.expm1.default)
def _expm1(e: Emitter, node: Node) -> ir.Value:
    power = e.op("Exp", [e.value(node.args[0])])
    return e.op("Sub", [power, e.scalar(1.0, e.dtype(node))], node=node)


@rule(aten.log2.default)
def _log2(e: Emitter, node: Node) -> ir.Value:
    dtype = e.dtype(node)
    natural = e.op("Log", [e.tensor(node.args[0], dtype)])
    return e.op("Div", [natural, e.scalar(math.log(2.0), dtype)], node=node)


@rule(aten.softplus.default)
def _softplus(e: Emitter, node: Node) -> ir.Value:
    return e.op("Softplus", [e.value(node.args[0])], node=node)


@rule(aten.gelu.default)
def _gelu(e: Emitter, node: Node) -> ir.Value:
    how = node.kwargs.get("approximate", "none")
    return e.op("Gelu", [e.value(node.args[0])], {"approximate": how}, node=node)


@rule(aten.leaky_relu.default)
def _leaky_relu(e: Emitter, node: Node) -> ir.Value:
    slope = float(arg(node, 1, "negative_slope", 0.01))
    return e.op("LeakyRelu", [e.value(node.args[0])], {"alpha": slope}, node=node)


@rule(aten.pow.Tensor_Scalar)
def _power(e: Emitter, node: Node) -> ir.Value:
    x = e.value(node.args[0])
    if node.args[1] == 2:
        return e.op("Mul", [x, x], node=node)
    return e.op("Pow", [x, e.scalar(node.args[1], e.dtype(node))], node=node)


@rule(*overloads("where", "self", "ScalarOther", "ScalarSelf", "Scalar"))
def _where(e: Emitter, node: Node) -> ir.Value:
    dtype = e.dtype(node)
    yes, no = (e.tensor(a, dtype) for a in node.args[1:3])
    return e.op("Where", [e.value(node.args[0]), yes, no], node=node)


@rule(*overloads("masked_fill", "Scalar", "Tensor"), *overloads("masked_fill_", "Scalar", "Tensor"))
def _masked_fill(e: Emitter, node: Node) -> ir.Value:
    x, mask, fill = node.args[:3]
    dtype = e.dtype(node)
    return e.op("Where", [e.value(mask), e.tensor(fill, dtype), e.tensor(x, dtype)], node=node)


@rule(aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default)
def _clamp(e: Emitter, node: Node) -> ir.Value:
    low, high = arg(node, 1, "min"), arg(node, 2, "max")
    if node.target is aten.clamp_max.default:
        low, high = None, node.args[1]
    dtype = e.dtype(node)
    limits = [None if limit is None else e.tensor(limit, dtype) for limit in (low, high)]
    while limits and limits[-1] is None:
        limits.pop()
    return e.op("Clip", [e.tensor(node.args[0], dtype), *limits], node=node)


@rule(aten.clamp.Tensor, aten.clamp_min.Tensor, aten.clamp_max.Tensor)
def _clamp_by_tensor(e: Emitter, node: Node) -> ir.Value:
    low, high = arg(node, 1, "min"), arg(node, 2, "max")
    if node.target is aten.clamp_max.Tensor:
        low, high = None, node.args[1]
    out = e.tensor(node.args[0], e.dtype(node))
    for op_type, limit in (("Max", low), ("Min", high)):
        if limit is not None:
            out = e.op(op_type, [out, e.tensor(limit, e.dtype(node))])
    return out


@rule(aten.nan_to_num.default)
def _nan_to_num(e: Emitter, node: Node) -> ir.Value:
    x = e.value(node.args[0])
    fill = e.scalar(arg(node, 1, "nan") or 0.0, e.dtype(node))
    return e.op("Where", [e.op("IsNaN", [x], node=None), fill, x], node=node)


@rule(aten.logaddexp.default)
def _logaddexp(e: Emitter, node: Node) -> ir.Value:
    a, b = (e.value(x) for x in node.args[:2])
    high = e.op("Max", [a, b])
    parts = [e.op("Exp", [e.op("Sub", [x, high])]) for x in (a, b)]
    return e.op("Add", [high, e.op("Log", [e.op("Add", parts)])], node=node)
