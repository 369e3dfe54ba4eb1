"""reduce_span: the largest or smallest over all tokens of the same sequence in this step.

Each of these tokens gets the same result. Rotary tables that switch by the length of what is read
at once need it; every other op but attention works on single tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qeff.ops.base import (
    FLOATS,
    INTS,
    Array,
    Attribute,
    Attrs,
    Input,
    Inputs,
    OpKind,
    Step,
    given,
    known,
)


def _rule(inputs: Inputs, attrs: Attrs) -> list[tuple[tuple[int, ...], str]]:
    return [(known(inputs, 0).shape, known(inputs, 0).dtype)]


def _reference(inputs: Sequence[Array | None], attrs: Attrs, step: Step) -> list[Array]:
    x = given(inputs, 0)
    y = np.empty_like(x)
    function = np.max if attrs["function"] == "max" else np.min
    for owner in np.unique(step.owners):
        mine = step.owners == owner
        y[mine] = function(x[mine], axis=0)
    return [y]


OP = OpKind(
    inputs=(Input("x", ("token",), (*FLOATS, *INTS)),),
    attributes=(Attribute("function", str, is_required=True, choices=("max", "min")),),
    rule=_rule,
    reference=_reference,
    summary="function of x over the tokens of the same sequence in this step",
)
