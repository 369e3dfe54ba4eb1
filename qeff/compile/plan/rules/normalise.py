"""Node types that normalise or rotate features.

RMSNormalization, LayerNormalization and RotaryEmbedding have ops of their own in the program.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from qeff.compile.plan import layout as lay
from qeff.compile.plan.lowering import Fixed, Lowered, Lowering, Refusal, Tokens
from qeff.compile.plan.rules.elementwise import combine
from qeff.container.program import ABSENT


def _norm(function: str) -> Callable[[ir.Node, Lowering], list[Lowered]]:
    def rule(node: ir.Node, plan: Lowering) -> list[Lowered]:
        x = plan.read_tokens(node.inputs[0])
        if node.attributes.get_int("axis", -1) not in (-1, len(x.layout) - 1):
            raise Refusal("normalises over more than the last axis")
        lay.inner_axis(x.layout, -1)
        eps = float(node.attributes.get_float("epsilon", 1e-5))
        scales = [plan.read(value) for value in node.inputs[1:] if value is not None]
        fused = [_vector(plan, scale, lay.size_of(x.layout[-1])) for scale in scales]
        if any(index is None for index in fused):
            # The weight is no vector of the last axis: normalise plainly, then scale and shift.
            (index,) = plan.emit("norm", [x.index], function=function, eps=eps)
            result = Tokens(index, x.layout)
            for step, scale in zip(("mul", "add"), scales, strict=False):
                result = combine(plan, step, [result, scale])
            return [result]
        inputs = [x.index, *(index for index in fused if index is not None)]
        return [Tokens(plan.emit("norm", inputs, function=function, eps=eps)[0], x.layout)]

    return rule


def _vector(plan: Lowering, scale: Lowered, size: int) -> int | None:
    """The program value of a weight that is one vector, or None when it is something else."""
    if not isinstance(scale, Fixed) or lay.stored_shape(scale.layout)[-1:] != (size,):
        return None
    if any(not lay.is_one(axis) for axis in scale.layout[:-1]):
        return None
    return plan.weight(scale.constant, (size,))


def _rotary(node: ir.Node, plan: Lowering) -> list[Lowered]:
    x = plan.read_tokens(node.inputs[0])
    angles = [_angles(plan, node, node.inputs[place]) for place in (1, 2)]
    half = plan.shape_of(angles[0])[-1]
    if node.attributes.get_int("rotary_embedding_dim", 0) not in (0, 2 * half):
        raise Refusal("rotates fewer features than its angles have")
    is_interleaved = bool(node.attributes.get_int("interleaved", 0))
    index = x.index
    if len(x.layout) == 3:  # [batch, seq, heads * dim]
        heads = node.attributes.get_int("num_heads", 0)
        if not heads or x.layout[:2] != (("B",), ("S",)):
            raise Refusal("has features of an unknown number of heads")
        index = plan.reshape(index, (heads, lay.size_of(x.layout[-1]) // heads))
    elif x.layout[0] != ("B",) or x.layout[2] != ("S",):
        raise Refusal("rotates something that is not [batch, heads, seq, dim]")
    (index,) = plan.emit("rope", [index, *angles], interleaved=is_interleaved)
    return [Tokens(plan.reshape(index, lay.inner_shape(x.layout)), x.layout)]


def _angles(plan: Lowering, node: ir.Node, value: ir.Value | None) -> int:
    """The cosines or sines of each token: computed, or rows of a table by position."""
    angles = plan.read(value)
    positions = node.inputs[3] if len(node.inputs) > 3 else None
    if positions is not None:
        if not isinstance(angles, Fixed):
            raise Refusal("looks positions up in a table that is not constant")
        table = plan.weight(angles.constant)
        return plan.emit("embed", [table, plan.read_tokens(positions).index])[0]
    if not isinstance(angles, Tokens) or angles.layout[:2] != (("B",), ("S",)):
        raise Refusal("has angles that are not those of each token")
    assert angles.index != ABSENT, "a lowered value has an index"
    return plan.reshape(angles.index, (lay.size_of(angles.layout[-1]),))


RULES: dict[str, Callable[[ir.Node, Lowering], list[Lowered]]] = {
    "LayerNormalization": _norm("layer"),
    "RMSNormalization": _norm("rms"),
    "RotaryEmbedding": _rotary,
}
