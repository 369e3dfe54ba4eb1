"""Node types that work on each element: arithmetic, comparisons, activations, casts, choices.

Operands broadcast as in ONNX, aligned at the last axis; the layouts say which program axes that
means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from qeff.compile.plan import layout as lay
from qeff.compile.plan.constants import Constant
from qeff.compile.plan.lowering import Fixed, Lowered, Lowering, Refusal, Tokens

_UNARY = {
    "Abs": "abs",
    "Ceil": "ceil",
    "Cos": "cos",
    "Erf": "erf",
    "Exp": "exp",
    "Floor": "floor",
    "Log": "log",
    "Neg": "neg",
    "Not": "not",
    "Reciprocal": "reciprocal",
    "Relu": "relu",
    "Round": "round",
    "Sigmoid": "sigmoid",
    "Sign": "sign",
    "Sin": "sin",
    "Softplus": "softplus",
    "Sqrt": "sqrt",
    "Tanh": "tanh",
}
_BINARY = {
    "Add": "add",
    "And": "and",
    "Div": "div",
    "Equal": "eq",
    "Greater": "gt",
    "GreaterOrEqual": "ge",
    "Less": "lt",
    "LessOrEqual": "le",
    "Max": "max",
    "Min": "min",
    "Mul": "mul",
    "Or": "or",
    "Pow": "pow",
    "Sub": "sub",
    "Sum": "add",
    "Xor": "xor",
}
_CASTS = {
    ir.DataType.FLOAT: "f32",
    ir.DataType.FLOAT16: "f16",
    ir.DataType.BFLOAT16: "bf16",
    ir.DataType.INT64: "i64",
    ir.DataType.INT32: "i32",
    ir.DataType.BOOL: "bool",
}


def combine(plan: Lowering, function: str, operands: Sequence[Lowered]) -> Tokens:
    """A binary function of two operands that broadcast against each other."""
    target = lay.merge([operand.layout for operand in operands])
    if function == "max" and (kept := _positions(plan, operands)) is not None:
        return kept
    inputs = [plan.aligned(operand, target) for operand in operands]
    return Tokens(plan.emit("binary", inputs, function=function)[0], target)


def _positions(plan: Lowering, operands: Sequence[Lowered]) -> Tokens | None:
    """Positions held at zero or above: that is for padding, which a program has none of."""
    for first, second in (operands, operands[::-1]):
        if not isinstance(first, Tokens) or first.index != plan.draft.positions:
            continue
        if isinstance(second, Fixed) and second.constant.tensor.size == 1:
            return first if second.constant.read().item() <= 0 and not second.layout else None
    return None


def apply(plan: Lowering, function: str, x: Tokens) -> Tokens:
    """A unary function."""
    return Tokens(plan.emit("unary", [x.index], function=function)[0], x.layout)


def scalar(plan: Lowering, number: float | int | bool, dtype: str) -> Fixed:
    """A constant number, as an operand."""
    kinds = {"f32": np.float32, "i64": np.int64, "i32": np.int32, "bool": np.bool_}
    array: np.ndarray = np.asarray(number, kinds.get(dtype, np.float32))
    return Fixed(Constant(f"scalar/{array.dtype}/{number!r}", ir.tensor(array)), ())


def _unary(function: str) -> Callable[[ir.Node, Lowering], list[Lowered]]:
    def rule(node: ir.Node, plan: Lowering) -> list[Lowered]:
        return [apply(plan, function, plan.read_tokens(node.inputs[0]))]

    return rule


def _binary(function: str) -> Callable[[ir.Node, Lowering], list[Lowered]]:
    def rule(node: ir.Node, plan: Lowering) -> list[Lowered]:
        result, *others = (plan.read(value) for value in node.inputs)
        for operand in others:
            result = combine(plan, function, [result, operand])
        return [result]

    return rule


def _power(node: ir.Node, plan: Lowering) -> list[Lowered]:
    base, exponent = plan.read(node.inputs[0]), plan.read(node.inputs[1])
    if isinstance(exponent, Fixed) and isinstance(base, Tokens):
        value = exponent.constant.read()
        is_float = plan.dtype_of(base.index) in ("f32", "f16", "bf16")
        if value.size == 1 and is_float:
            if value.item() == 2:
                return [apply(plan, "square", base)]
            exponent = scalar(plan, float(value.item()), "f32")
    return [combine(plan, "pow", [base, exponent])]


def _modulo(node: ir.Node, plan: Lowering) -> list[Lowered]:
    function = "fmod" if node.attributes.get_int("fmod", 0) else "mod"
    return [combine(plan, function, [plan.read(value) for value in node.inputs])]


def _cast(node: ir.Node, plan: Lowering) -> list[Lowered]:
    x = plan.read_tokens(node.inputs[0])
    to = ir.DataType(node.attributes["to"].as_int())
    if to not in _CASTS:
        raise Refusal(f"computes in {to.name}")
    if plan.dtype_of(x.index) == _CASTS[to]:
        return [x]
    return [Tokens(plan.emit("cast", [x.index], to=_CASTS[to])[0], x.layout)]


def _where(node: ir.Node, plan: Lowering) -> list[Lowered]:
    operands = [plan.read(value) for value in node.inputs]
    target = lay.merge([operand.layout for operand in operands])
    inputs = [plan.aligned(operand, target) for operand in operands]
    return [Tokens(plan.emit("where", inputs)[0], target)]


def _clip(node: ir.Node, plan: Lowering) -> list[Lowered]:
    result: Lowered = plan.read_tokens(node.inputs[0])
    for value, function in zip(node.inputs[1:], ("max", "min"), strict=False):
        if value is not None:
            result = combine(plan, function, [result, plan.read(value)])
    return [result]


def _gelu(node: ir.Node, plan: Lowering) -> list[Lowered]:
    is_tanh = node.attributes.get_string("approximate", "none") == "tanh"
    return [apply(plan, "gelu_tanh" if is_tanh else "gelu", plan.read_tokens(node.inputs[0]))]


def _swish(node: ir.Node, plan: Lowering) -> list[Lowered]:
    x, alpha = plan.read_tokens(node.inputs[0]), node.attributes.get_float("alpha", 1.0)
    if alpha == 1.0:
        return [apply(plan, "silu", x)]
    scaled = combine(plan, "mul", [x, scalar(plan, float(alpha), "f32")])
    return [combine(plan, "mul", [x, apply(plan, "sigmoid", scaled)])]


def _leaky(node: ir.Node, plan: Lowering) -> list[Lowered]:
    x, alpha = plan.read_tokens(node.inputs[0]), node.attributes.get_float("alpha", 0.01)
    below = combine(plan, "min", [x, scalar(plan, 0.0, "f32")])
    scaled = combine(plan, "mul", [below, scalar(plan, float(alpha), "f32")])
    return [combine(plan, "add", [apply(plan, "relu", x), scaled])]


def _alias(node: ir.Node, plan: Lowering) -> list[Lowered]:
    return [plan.read(node.inputs[0])]


RULES: dict[str, Callable[[ir.Node, Lowering], list[Lowered]]] = {
    **{op_type: _unary(function) for op_type, function in _UNARY.items()},
    **{op_type: _binary(function) for op_type, function in _BINARY.items()},
    "Cast": _cast,
    "Clip": _clip,
    "Gelu": _gelu,
    "Identity": _alias,
    "LeakyRelu": _leaky,
    "Mod": _modulo,
    "Pow": _power,
    "Swish": _swish,
    "Where": _where,
}
