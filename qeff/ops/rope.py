"""rope: rotate pairs of features by the angle of the token's position.

The first ``2 * len(cos)`` features of the last inner axis are rotated, the others pass through. A
pair is (i, i + half), or (2i, 2i + 1) when ``interleaved``; half is half of the rotated features.
"""

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
    RuleError,
    Step,
    as_float,
    given,
    known,
)


def _rule(inputs: Inputs, attrs: Attrs) -> list[tuple[tuple[int, ...], str]]:
    x, cos, sin = known(inputs, 0), known(inputs, 1), known(inputs, 2)
    if len(cos.shape) != 1 or cos.shape != sin.shape or not x.shape:
        raise RuleError(f"rotates {x.shape} by {cos.shape} and {sin.shape}")
    if 2 * cos.shape[0] > x.shape[-1]:
        raise RuleError(f"rotates {2 * cos.shape[0]} features of {x.shape[-1]}")
    return [(x.shape, x.dtype)]


def _reference(inputs: Sequence[Array | None], attrs: Attrs, step: Step) -> list[Array]:
    x, cos, sin = given(inputs, 0), as_float(given(inputs, 1)), as_float(given(inputs, 2))
    half = cos.shape[-1]
    lift = (len(x), *(1,) * (x.ndim - 2), half)
    cos, sin = cos.reshape(lift), sin.reshape(lift)  # [T, 1, ..., half]
    y = as_float(x).copy()
    if attrs["interleaved"]:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    else:
        first, second = slice(0, half), slice(half, 2 * half)
    a, b = as_float(x)[..., first], as_float(x)[..., second]
    y[..., first] = a * cos - b * sin
    y[..., second] = a * sin + b * cos
    return [np.asarray(y, x.dtype)]


OP = OpKind(
    inputs=(Input("x"), Input("cos"), Input("sin")),
    attributes=(Attribute("interleaved", bool, False),),
    rule=_rule,
    reference=_reference,
    flops=lambda inputs, attrs, num_tokens, context_len: 3 * known(inputs, 0).size * num_tokens,
    summary="pairs (a, b) of features become (a·cos − b·sin, a·sin + b·cos)",
)
