"""transpose: the inner axes in another order."""

from __future__ import annotations

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
    x, perm = known(inputs, 0), attrs["perm"]
    if sorted(perm) != list(range(len(x.shape))):
        raise RuleError(f"orders the axes of {x.shape} as {perm}")
    return [(tuple(x.shape[axis] for axis in perm), x.dtype)]


def _reference(inputs: Sequence[Array | None], attrs: Attrs, step: Step) -> list[Array]:
    return [given(inputs, 0).transpose(0, *(axis + 1 for axis in attrs["perm"]))]


OP = OpKind(
    inputs=(Input("x", dtypes=(*FLOATS, *INTS, "bool")),),
    attributes=(Attribute("perm", tuple, is_required=True),),
    rule=_rule,
    reference=_reference,
    flops=lambda inputs, attrs, num_tokens, context_len: 0,
    summary="inner axis i of the result is inner axis perm[i] of x",
)
