"""The graph's MoE ops, which already say what the program's ``moe`` says."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from qeff.compile.plan import layout as lay
from qeff.compile.plan.lowering import Fixed, Lowered, Lowering, Refusal, Tokens


def _moe(node: ir.Node, plan: Lowering) -> list[Lowered]:
    x, index, weight = (plan.read_tokens(value) for value in node.inputs[:3])
    for part in (x, index, weight):
        if len(part.layout) != 2 or set(lay.all_tokens(part.layout)) != {"B", "S"}:
            raise Refusal("takes inputs that are not [tokens, features]")
    inputs = [x.index, index.index, weight.index]
    for value in node.inputs[3:]:
        experts = plan.read(value)
        if not isinstance(experts, Fixed):
            raise Refusal("has experts that are not constant")
        inputs.append(plan.weight(experts.constant))
    attrs = node.attributes
    (result,) = plan.emit(
        "moe",
        inputs,
        transposed=bool(attrs.get_int("transposed", 0)),
        gate=attrs.get_string("gate", "half"),
        activation=attrs.get_string("activation", "silu"),
        alpha=float(attrs.get_float("alpha", 1.702)),
        limit=float(attrs.get_float("limit", 7.0)),
    )
    width = plan.shape_of(result)[0]
    return [Tokens(result, lay.replace_axis(x.layout, 1, width))]


RULES: dict[str, Callable[[ir.Node, Lowering], list[Lowered]]] = {"MoE": _moe, "MoEBias": _moe}
