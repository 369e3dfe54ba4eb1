"""gated: activation(gate) times up, the middle of a gated MLP."""

from __future__ import annotations

from collections.abc import Sequence

from qeff.ops.base import (
    Array,
    Attribute,
    Attrs,
    Input,
    Inputs,
    OpKind,
    RuleError,
    Step,
    as_float,
    given,
    known,
    same_dtype,
)
from qeff.ops.functions import ACTIVATIONS


def _rule(inputs: Inputs, attrs: Attrs) -> list[tuple[tuple[int, ...], str]]:
    gate, up = known(inputs, 0), known(inputs, 1)
    if gate.shape != up.shape:
        raise RuleError(f"has a gate {gate.shape} for {up.shape}")
    return [(up.shape, same_dtype([gate, up]))]


def _reference(inputs: Sequence[Array | None], attrs: Attrs, step: Step) -> list[Array]:
    gate, up = given(inputs, 0), given(inputs, 1)
    y = ACTIVATIONS[attrs["activation"]](as_float(gate)) * as_float(up)
    return [y.astype(up.dtype, copy=False)]


OP = OpKind(
    inputs=(Input("gate"), Input("up")),
    attributes=(
        Attribute("activation", str, is_required=True, choices=tuple(sorted(ACTIVATIONS))),
    ),
    rule=_rule,
    reference=_reference,
    flops=lambda inputs, attrs, num_tokens, context_len: 4 * known(inputs, 0).size * num_tokens,
    summary="activation(gate) · up, element by element",
)
