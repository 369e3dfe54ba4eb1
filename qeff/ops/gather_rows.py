"""gather_rows: keep the tokens whose logits are wanted, in the order they were asked for."""

from __future__ import annotations

from collections.abc import Sequence

from qeff.ops.base import FLOATS, INTS, Array, Attrs, Input, Inputs, OpKind, Step, given, known


def _rule(inputs: Inputs, attrs: Attrs) -> list[tuple[tuple[int, ...], str]]:
    return [(known(inputs, 0).shape, known(inputs, 0).dtype)]


def _reference(inputs: Sequence[Array | None], attrs: Attrs, step: Step) -> list[Array]:
    return [given(inputs, 0)[step.rows]]


OP = OpKind(
    inputs=(Input("x", ("token",), (*FLOATS, *INTS, "bool")),),
    rule=_rule,
    reference=_reference,
    flops=lambda inputs, attrs, num_tokens, context_len: 0,
    output_kind="row",
    summary="x of each requested row: a token value becomes a row value",
)
