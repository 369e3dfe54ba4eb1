"""expand: repeat inner axes of size one; numpy's broadcast_to for each token."""

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
    given,
    known,
)


def _rule(inputs: Inputs, attrs: Attrs) -> list[tuple[tuple[int, ...], str]]:
    x, shape = known(inputs, 0), attrs["shape"]
    if len(shape) != len(x.shape) or any(size < 0 for size in shape):
        raise RuleError(f"expands {x.shape} to {shape}")
    if any(have not in (1, want) for have, want in zip(x.shape, shape, strict=True)):
        raise RuleError(f"expands {x.shape} to {shape}")
    return [(shape, x.dtype)]


def _reference(inputs: Sequence[Array | None], attrs: Attrs, step: Step) -> list[Array]:
    x = given(inputs, 0)
    return [np.broadcast_to(x, (len(x), *attrs["shape"]))]


OP = OpKind(
    inputs=(Input("x", dtypes=(*FLOATS, *INTS, "bool")),),
    attributes=(Attribute("shape", tuple, is_required=True),),
    rule=_rule,
    reference=_reference,
    flops=lambda inputs, attrs, num_tokens, context_len: 0,
    summary="x with its inner axes of size one repeated to `shape`",
)
