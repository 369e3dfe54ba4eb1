"""cast: the same numbers in another element type; floats become whole numbers by cutting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qeff.ops.base import (
    FLOATS,
    INTS,
    NUMPY_DTYPES,
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
    return [(known(inputs, 0).shape, attrs["to"])]


def _reference(inputs: Sequence[Array | None], attrs: Attrs, step: Step) -> list[Array]:
    with np.errstate(over="ignore", invalid="ignore"):
        return [given(inputs, 0).astype(NUMPY_DTYPES[attrs["to"]])]


OP = OpKind(
    inputs=(Input("x", dtypes=(*FLOATS, *INTS, "bool")),),
    attributes=(Attribute("to", str, is_required=True, choices=tuple(NUMPY_DTYPES)),),
    rule=_rule,
    reference=_reference,
    summary="x in the element type `to`",
)
