"""reduce: sum, mean, product, largest or smallest over inner axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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
    as_float,
    check_axis,
    given,
    known,
)

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "max": np.max,
    "mean": np.mean,
    "min": np.min,
    "prod": np.prod,
    "sum": np.sum,
}


def _rule(inputs: Inputs, attrs: Attrs) -> list[tuple[tuple[int, ...], str]]:
    x, axes = known(inputs, 0), attrs["axes"]
    if not axes or len(set(axes)) != len(axes):
        raise RuleError(f"reduces the axes {axes}")
    for axis in axes:
        if x.shape[check_axis(axis, x.shape)] == 0:
            raise RuleError(f"reduces an empty axis of {x.shape}")
    if x.dtype not in FLOATS and attrs["function"] == "mean":
        raise RuleError(f"takes the mean of {x.dtype}")
    kept = [
        1 if axis in axes else size
        for axis, size in enumerate(x.shape)
        if attrs["keepdims"] or axis not in axes
    ]
    return [(tuple(kept), x.dtype)]


def _reference(inputs: Sequence[Array | None], attrs: Attrs, step: Step) -> list[Array]:
    x = given(inputs, 0)
    axes = tuple(axis + 1 for axis in attrs["axes"])  # the token axis comes first
    function = FUNCTIONS[attrs["function"]]
    values = x if x.dtype.kind == "i" else as_float(x)
    return [np.asarray(function(values, axis=axes, keepdims=attrs["keepdims"]), x.dtype)]


OP = OpKind(
    inputs=(Input("x", dtypes=(*FLOATS, *INTS)),),
    attributes=(
        Attribute("function", str, is_required=True, choices=tuple(sorted(FUNCTIONS))),
        Attribute("axes", tuple, is_required=True),
        Attribute("keepdims", bool, False),
    ),
    rule=_rule,
    reference=_reference,
    flops=lambda inputs, attrs, num_tokens, context_len: known(inputs, 0).size * num_tokens,
    summary="function of x over inner axes",
)
