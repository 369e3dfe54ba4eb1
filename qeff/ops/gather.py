"""gather: along one inner axis, the elements that an index of the same other sizes names."""

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
    RuleError,
    Step,
    check_axis,
    given,
    known,
)


def _rule(inputs: Inputs, attrs: Attrs) -> list[tuple[tuple[int, ...], str]]:
    x, index = known(inputs, 0), known(inputs, 1)
    axis = check_axis(attrs["axis"], x.shape)
    if len(index.shape) != len(x.shape):
        raise RuleError(f"picks {index.shape} from {x.shape}")
    others = [
        (i, j) for at, (i, j) in enumerate(zip(index.shape, x.shape, strict=True)) if at != axis
    ]
    if any(i != j for i, j in others):
        raise RuleError(f"picks {index.shape} from {x.shape} along axis {axis}")
    return [(index.shape, x.dtype)]


def _reference(inputs: Sequence[Array | None], attrs: Attrs, step: Step) -> list[Array]:
    x, index, axis = given(inputs, 0), given(inputs, 1), attrs["axis"] + 1
    return [np.take_along_axis(x, index, axis)]


OP = OpKind(
    inputs=(Input("x", dtypes=(*FLOATS, *INTS, "bool")), Input("index", dtypes=INTS)),
    attributes=(Attribute("axis", int, is_required=True, minimum=0),),
    rule=_rule,
    reference=_reference,
    flops=lambda inputs, attrs, num_tokens, context_len: 0,
    summary="x at `index` along an inner axis",
)
