"""reshape: the same elements in the same order under another inner shape; nothing moves."""

from __future__ import annotations

import math
from collections.abc import Sequence

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
    if any(size < 0 for size in shape) or math.prod(shape) != x.size:
        raise RuleError(f"turns {x.shape} into {shape}")
    return [(shape, x.dtype)]


def _reference(inputs: Sequence[Array | None], attrs: Attrs, step: Step) -> list[Array]:
    x = given(inputs, 0)
    return [x.reshape(len(x), *attrs["shape"])]


OP = OpKind(
    inputs=(Input("x", dtypes=(*FLOATS, *INTS, "bool")),),
    attributes=(Attribute("shape", tuple, is_required=True),),
    rule=_rule,
    reference=_reference,
    flops=lambda inputs, attrs, num_tokens, context_len: 0,
    summary="x under the inner shape `shape`",
)
