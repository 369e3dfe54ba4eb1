"""concat: values one after the other along an inner axis; a weight stands for each token alike."""

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
    known,
    same_dtype,
)


def _rule(inputs: Inputs, attrs: Attrs) -> list[tuple[tuple[int, ...], str]]:
    args = [known(inputs, i) for i in range(len(inputs))]
    axis = check_axis(attrs["axis"], args[0].shape)
    others = {(*arg.shape[:axis], *arg.shape[axis + 1 :]) for arg in args}
    if len(others) != 1 or len({len(arg.shape) for arg in args}) != 1:
        raise RuleError(f"joins {[arg.shape for arg in args]} along axis {axis}")
    size = sum(arg.shape[axis] for arg in args)
    return [((*args[0].shape[:axis], size, *args[0].shape[axis + 1 :]), same_dtype(args))]


def _reference(inputs: Sequence[Array | None], attrs: Attrs, step: Step) -> list[Array]:
    arrays = [array for array in inputs if array is not None]
    rank = max(array.ndim for array in arrays)
    values = [array for array in arrays if array.ndim == rank]  # a weight lacks the token axis
    num = len(values[0])
    parts = [a if a.ndim == rank else np.broadcast_to(a, (num, *a.shape)) for a in arrays]
    return [np.concatenate(parts, attrs["axis"] + 1).astype(values[0].dtype, copy=False)]


OP = OpKind(
    inputs=(Input("x", ("token", "row", "weight"), (*FLOATS, *INTS, "bool")),),
    attributes=(Attribute("axis", int, is_required=True, minimum=0),),
    rule=_rule,
    reference=_reference,
    flops=lambda inputs, attrs, num_tokens, context_len: 0,
    is_variadic=True,
    summary="the inputs one after the other along an inner axis",
)
