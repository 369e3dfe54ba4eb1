"""where: a where the condition holds, b elsewhere, with broadcasting over the inner axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qeff.ops.base import (
    FLOATS,
    INTS,
    Array,
    Attrs,
    Input,
    Inputs,
    OpKind,
    RuleError,
    Step,
    broadcast,
    given,
    known,
)


def _rule(inputs: Inputs, attrs: Attrs) -> list[tuple[tuple[int, ...], str]]:
    condition, a, b = known(inputs, 0), known(inputs, 1), known(inputs, 2)
    if a.dtype != b.dtype:
        raise RuleError(f"chooses between {a.dtype} and {b.dtype}")
    return [(broadcast([condition, a, b]), a.dtype)]


def _reference(inputs: Sequence[Array | None], attrs: Attrs, step: Step) -> list[Array]:
    return [np.where(given(inputs, 0), given(inputs, 1), given(inputs, 2))]


_EITHER = ("token", "row", "weight")
OP = OpKind(
    inputs=(
        Input("condition", _EITHER, ("bool",)),
        Input("a", _EITHER, (*FLOATS, *INTS, "bool")),
        Input("b", _EITHER, (*FLOATS, *INTS, "bool")),
    ),
    rule=_rule,
    reference=_reference,
    summary="condition ? a : b, element by element",
)
