"""norm: scale the last inner axis to unit size, then by a weight.

``rms`` divides by the root of the mean square; ``layer`` takes the mean away first.
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
    present,
)


def _rule(inputs: Inputs, attrs: Attrs) -> list[tuple[tuple[int, ...], str]]:
    x = known(inputs, 0)
    if not x.shape or not x.shape[-1]:
        raise RuleError("has nothing to normalise over")
    for scale in (present(inputs, 1), present(inputs, 2)):
        if scale is not None and scale.shape != x.shape[-1:]:
            raise RuleError(f"has a weight or bias {scale.shape} for {x.shape}")
    return [(x.shape, x.dtype)]


def _reference(inputs: Sequence[Array | None], attrs: Attrs, step: Step) -> list[Array]:
    x, weight, bias = given(inputs, 0), present(inputs, 1), present(inputs, 2)
    y = as_float(x)
    if attrs["function"] == "layer":
        y = y - y.mean(-1, keepdims=True)
    y = y / np.sqrt(np.square(y).mean(-1, keepdims=True) + np.float32(attrs["eps"]))
    if weight is not None:
        y = y * as_float(weight)
    if bias is not None:
        y = y + as_float(bias)
    return [y.astype(x.dtype, copy=False)]


OP = OpKind(
    inputs=(
        Input("x"),
        Input("weight", ("weight",), is_optional=True),
        Input("bias", ("weight",), is_optional=True),
    ),
    attributes=(
        Attribute("function", str, is_required=True, choices=("rms", "layer")),
        Attribute("eps", float, 1e-5, minimum=0.0),
    ),
    rule=_rule,
    reference=_reference,
    flops=lambda inputs, attrs, num_tokens, context_len: 4 * known(inputs, 0).size * num_tokens,
    summary="x / sqrt(mean(x²) + eps) · weight + bias over the last inner axis",
)
