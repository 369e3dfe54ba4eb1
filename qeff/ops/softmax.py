"""softmax: exp(x) scaled to sum to one along an inner axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qeff.ops.base import (
    Array,
    Attribute,
    Attrs,
    Input,
    Inputs,
    OpKind,
    Step,
    as_float,
    check_axis,
    given,
    known,
)


def _rule(inputs: Inputs, attrs: Attrs) -> list[tuple[tuple[int, ...], str]]:
    x = known(inputs, 0)
    check_axis(attrs["axis"], x.shape)
    return [(x.shape, x.dtype)]


def _reference(inputs: Sequence[Array | None], attrs: Attrs, step: Step) -> list[Array]:
    x, axis = given(inputs, 0), attrs["axis"] + 1
    y = as_float(x)
    if not y.size:
        return [x]
    y = np.exp(y - y.max(axis, keepdims=True))
    return [np.asarray(y / y.sum(axis, keepdims=True), x.dtype)]


OP = OpKind(
    inputs=(Input("x"),),
    attributes=(Attribute("axis", int, is_required=True, minimum=0),),
    rule=_rule,
    reference=_reference,
    flops=lambda inputs, attrs, num_tokens, context_len: 4 * known(inputs, 0).size * num_tokens,
    summary="exp(x) / Σ exp(x) along an inner axis",
)
