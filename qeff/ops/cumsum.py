"""cumsum: running sums along an inner axis."""

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
    check_axis,
    given,
    known,
)


def _rule(inputs: Inputs, attrs: Attrs) -> list[tuple[tuple[int, ...], str]]:
    x = known(inputs, 0)
    check_axis(attrs["axis"], x.shape)
    return [(x.shape, x.dtype)]


def _reference(inputs: Sequence[Array | None], attrs: Attrs, step: Step) -> list[Array]:
    x = given(inputs, 0)
    return [np.cumsum(x, attrs["axis"] + 1, dtype=x.dtype)]


OP = OpKind(
    inputs=(Input("x", dtypes=(*FLOATS, *INTS)),),
    attributes=(Attribute("axis", int, is_required=True, minimum=0),),
    rule=_rule,
    reference=_reference,
    summary="Σ of the elements up to each place of an inner axis",
)
