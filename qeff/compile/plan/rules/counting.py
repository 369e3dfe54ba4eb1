"""Counting tokens: the first position of a row, and the places 0, 1, 2, … within it.

In a row positions rise by one, so the place of a token is its position less the row's first, and a
row's first position is the smallest of its span. What a graph computes of both is mostly the
position again, which ``fuse/positions.py`` finds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from qeff.compile.plan import layout as lay
from qeff.compile.plan.lowering import Lowered, Lowering, Refusal, Tokens


def first_of_row(plan: Lowering, x: Tokens, layout: lay.Layout) -> Tokens:
    """The value of a row's first token, for positions only. ``layout`` has no sequence axis."""
    if x.index != plan.draft.positions:
        raise Refusal("takes the first token of a row")
    (first,) = plan.emit("reduce_span", [x.index], function="min")
    return Tokens(plan.reshape(first, lay.inner_shape(layout)), layout)


def _range(node: ir.Node, plan: Lowering) -> list[Lowered]:
    layout = lay.declared(lay.read_dims(node.outputs[0]))
    start, step = plan.constants.number(node.inputs[0]), plan.constants.number(node.inputs[2])
    is_plain = start is not None and step is not None and (start.item(), step.item()) == (0, 1)
    if layout != (("S",),) or not is_plain or node.outputs[0].dtype is not ir.DataType.INT64:
        raise Refusal("counts something else than the tokens of a row from 0")
    (first,) = plan.emit("reduce_span", [plan.draft.positions], function="min")
    (place,) = plan.emit("binary", [plan.draft.positions, first], function="sub")
    return [Tokens(place, layout)]


def _nothing(node: ir.Node) -> Sequence[ir.Value | None]:
    return ()


RULES: dict[str, Callable[[ir.Node, Lowering], list[Lowered]]] = {"Range": _range}
DEMANDS: dict[str, Callable[[ir.Node], Sequence[ir.Value | None]]] = {"Range": _nothing}
