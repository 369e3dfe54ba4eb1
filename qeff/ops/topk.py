"""topk: the k largest (or smallest) along an inner axis, best first, and where they lie.

Of equal elements the one with the lower index comes first.
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
    RuleError,
    Step,
    check_axis,
    given,
    known,
)


def _rule(inputs: Inputs, attrs: Attrs) -> list[tuple[tuple[int, ...], str]]:
    x, k = known(inputs, 0), attrs["k"]
    axis = check_axis(attrs["axis"], x.shape)
    if k > x.shape[axis]:
        raise RuleError(f"takes the best {k} of {x.shape[axis]}")
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return [(shape, x.dtype), (shape, "i64")]


def _reference(inputs: Sequence[Array | None], attrs: Attrs, step: Step) -> list[Array]:
    x, axis = given(inputs, 0), attrs["axis"] + 1
    order = np.argsort(-x if attrs["largest"] else x, axis=axis, kind="stable")
    index = np.take(order, np.arange(attrs["k"]), axis=axis).astype(np.int64)
    return [np.take_along_axis(x, index, axis), index]


OP = OpKind(
    inputs=(Input("x", dtypes=(*FLOATS, *INTS)),),
    attributes=(
        Attribute("k", int, is_required=True, minimum=0),
        Attribute("axis", int, is_required=True, minimum=0),
        Attribute("largest", bool, True),
    ),
    rule=_rule,
    reference=_reference,
    flops=lambda inputs, attrs, num_tokens, context_len: known(inputs, 0).size * num_tokens,
    summary="values and indices of the k best along an inner axis",
)
