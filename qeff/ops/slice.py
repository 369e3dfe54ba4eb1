"""slice: a stretch of one inner axis, every ``step``-th element of it."""

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
    check_axis,
    given,
    known,
)


def _rule(inputs: Inputs, attrs: Attrs) -> list[tuple[tuple[int, ...], str]]:
    x, start, stop = known(inputs, 0), attrs["start"], attrs["stop"]
    axis = check_axis(attrs["axis"], x.shape)
    if not start <= stop <= x.shape[axis]:
        raise RuleError(f"cuts {start} to {stop} out of {x.shape[axis]}")
    size = len(range(start, stop, attrs["step"]))
    return [((*x.shape[:axis], size, *x.shape[axis + 1 :]), x.dtype)]


def _reference(inputs: Sequence[Array | None], attrs: Attrs, step: Step) -> list[Array]:
    before = (slice(None),) * (attrs["axis"] + 1)  # the token axis and the inner ones before
    return [given(inputs, 0)[(*before, slice(attrs["start"], attrs["stop"], attrs["step"]))]]


OP = OpKind(
    inputs=(Input("x", dtypes=(*FLOATS, *INTS, "bool")),),
    attributes=(
        Attribute("axis", int, is_required=True, minimum=0),
        Attribute("start", int, is_required=True, minimum=0),
        Attribute("stop", int, is_required=True, minimum=0),
        Attribute("step", int, 1, minimum=1),
    ),
    rule=_rule,
    reference=_reference,
    flops=lambda inputs, attrs, num_tokens, context_len: 0,
    summary="x[start:stop:step] along an inner axis",
)
