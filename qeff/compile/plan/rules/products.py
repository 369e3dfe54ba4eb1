"""Node types that multiply matrices: MatMul and Gemm become linear or matmul.

The product with a weight matrix is ``linear``, whichever way the weight lies. A product over an
axis of size one is a multiplication of elements. Everything else must keep the tokens out of the
product.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from qeff.compile.plan import layout as lay
from qeff.compile.plan.lowering import Fixed, Lowered, Lowering, Refusal, Tokens
from qeff.compile.plan.rules.elementwise import combine, scalar


def _matmul(node: ir.Node, plan: Lowering) -> list[Lowered]:
    a, b = plan.read(node.inputs[0]), plan.read(node.inputs[1])
    if min(len(a.layout), len(b.layout)) < 2:
        raise Refusal("multiplies with a vector")
    if a.layout[-1] != b.layout[-2]:
        raise lay.LayoutError("sums over tokens")
    if a.layout[-1] == (1,):
        return [combine(plan, "mul", [a, b])]
    if isinstance(a, Tokens) and isinstance(b, Fixed) and not lay.all_tokens(b.layout):
        if all(lay.is_one(axis) for axis in b.layout[:-2]):
            return [_linear(plan, a, node.inputs[1], b)]
        return [_stacked(plan, a, b)]
    if isinstance(a, Fixed):
        raise Refusal("multiplies a constant with a token value from the left")
    return [_inner(plan, a, b)]


def _linear(plan: Lowering, a: Tokens, value: ir.Value | None, b: Fixed) -> Tokens:
    """X times a weight matrix, kept as the checkpoint has it."""
    assert value is not None, "a product has two inputs"
    found = plan.constants.matrix(value) if len(b.layout) == 2 else None
    if found is None:
        found = (b.constant, False)
    constant, is_flipped = found
    shape = lay.inner_shape(b.layout[-2:])  # [in, out] as the graph means it
    weight = plan.weight(constant, shape[::-1] if is_flipped else shape)
    (index,) = plan.emit("linear", [a.index, weight], transposed=not is_flipped)
    return Tokens(index, (*a.layout[:-1], b.layout[-1]))


def _stacked(plan: Lowering, a: Tokens, b: Fixed) -> Tokens:
    """A stack of weight matrices, one for each inner row: tokens are the rows of the product."""
    lead, row = a.layout[:-2], a.layout[-2]
    if lay.sizes_of(row) and lay.tokens_of(row):
        raise lay.LayoutError("multiplies rows that mix tokens with other axes")
    target = lay.merge([lead, b.layout[:-2]])
    stack = lay.aligned_shape(lead, target)
    rows = lay.sizes_of(row) or (1,)  # a row of tokens is a single row in the program
    left = plan.reshape(a.index, (*stack, *rows, lay.size_of(a.layout[-1])))
    right = plan.weight(
        b.constant, (*lay.aligned_shape(b.layout[:-2], target), *lay.inner_shape(b.layout[-2:]))
    )
    (index,) = plan.emit("matmul", [left, right])
    result = (*target, row, b.layout[-1])
    return Tokens(plan.reshape(index, lay.inner_shape(result)), result)


def _inner(plan: Lowering, a: Tokens, b: Lowered) -> Tokens:
    """Matrices of each token: all tokens lie in the leading axes, alike in both."""
    if lay.all_tokens(a.layout[-2:]) or lay.all_tokens(b.layout[-2:]):
        raise lay.LayoutError("multiplies across tokens; attention is lowered from its own op only")
    target = lay.merge([a.layout[:-2], b.layout[:-2]])
    inputs = []
    for operand in (a, b):
        shape = (
            *lay.aligned_shape(operand.layout[:-2], target),
            *lay.inner_shape(operand.layout[-2:]),
        )
        if isinstance(operand, Tokens):
            inputs.append(plan.reshape(operand.index, shape))
        else:
            inputs.append(plan.weight(operand.constant, shape))
    (index,) = plan.emit("matmul", inputs)
    return Tokens(index, (*target, a.layout[-2], b.layout[-1]))


def _gemm(node: ir.Node, plan: Lowering) -> list[Lowered]:
    """X times a weight matrix plus a bias, both scaled."""
    a, b = plan.read_tokens(node.inputs[0]), plan.read(node.inputs[1])
    get = node.attributes.get_int
    if get("transA", 0) or not isinstance(b, Fixed) or node.inputs[1] is None:
        raise Refusal("transposes tokens, or multiplies two token values")
    found = plan.constants.matrix(node.inputs[1])
    constant, is_flipped = found if found is not None else (b.constant, False)
    if get("transB", 0):
        is_flipped = not is_flipped
    (index,) = plan.emit("linear", [a.index, plan.weight(constant)], transposed=not is_flipped)
    result: Lowered = Tokens(index, (*a.layout[:-1], (plan.shape_of(index)[-1],)))
    result = _scaled(plan, result, node.attributes.get_float("alpha", 1.0))
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        bias = plan.read(node.inputs[2])
        if node.attributes.get_float("beta", 1.0) != 1.0:
            raise Refusal("scales its bias")
        result = combine(plan, "add", [result, bias])
    return [result]


def _scaled(plan: Lowering, x: Lowered, factor: float) -> Lowered:
    return x if factor == 1.0 else combine(plan, "mul", [x, scalar(plan, float(factor), "f32")])


RULES: dict[str, Callable[[ir.Node, Lowering], list[Lowered]]] = {
    "Gemm": _gemm,
    "MatMul": _matmul,
}
