"""scatter: x with the elements that an index names along one inner axis set, or added to.

Index and update have the same shape and, but for the axis, at most the sizes of x. Where an index
comes twice, ``set`` keeps the last and ``add`` adds both.
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
    x, index, update = known(inputs, 0), known(inputs, 1), known(inputs, 2)
    axis = check_axis(attrs["axis"], x.shape)
    fits = len(index.shape) == len(x.shape) and all(
        i <= j for at, (i, j) in enumerate(zip(index.shape, x.shape, strict=False)) if at != axis
    )
    if not fits or index.shape != update.shape or x.dtype != update.dtype:
        raise RuleError(f"puts {update.shape} at {index.shape} into {x.shape}")
    if attrs["function"] == "add" and x.dtype == "bool":
        raise RuleError("adds truth values")
    return [(x.shape, x.dtype)]


def _reference(inputs: Sequence[Array | None], attrs: Attrs, step: Step) -> list[Array]:
    x, index, update = given(inputs, 0), given(inputs, 1), given(inputs, 2)
    if x.ndim < index.ndim:  # a weight, the same for each token
        x = np.broadcast_to(x, (len(index), *x.shape))
    y = x.copy()
    places: list[Array] = list(np.indices(index.shape, sparse=True))
    places[attrs["axis"] + 1] = index
    if attrs["function"] == "add":
        np.add.at(y, tuple(places), update)
    else:
        y[tuple(places)] = update
    return [y]


_EITHER = ("token", "row", "weight")
OP = OpKind(
    inputs=(
        Input("x", _EITHER, (*FLOATS, *INTS, "bool")),
        Input("index", dtypes=INTS),
        Input("update", _EITHER, (*FLOATS, *INTS, "bool")),
    ),
    attributes=(
        Attribute("axis", int, is_required=True, minimum=0),
        Attribute("function", str, "set", choices=("set", "add")),
    ),
    rule=_rule,
    reference=_reference,
    summary="x with `update` set or added at `index` along an inner axis",
)
