"""Run one op's reference, and hold its result against the op's own rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qeff.ops import Arg, Step, kinds
from qeff.ops.base import NUMPY_DTYPES

DTYPE_NAMES = {dtype: name for name, dtype in NUMPY_DTYPES.items()}
T = 5  # tokens of a step


def empty_step(num_tokens: int = T) -> Step:
    zeros = np.zeros(num_tokens, np.int64)
    return Step(positions=zeros, owners=zeros, slots=zeros, rows=zeros[:0])


def weight(array: Any) -> tuple[str, np.ndarray]:
    return "weight", np.asarray(array)


def token(array: Any) -> tuple[str, np.ndarray]:
    return "token", np.asarray(array)


def arg_of(item: tuple[str, np.ndarray] | None) -> Arg | None:
    if item is None:
        return None
    kind, array = item
    shape = array.shape if kind == "weight" else array.shape[1:]
    return Arg(kind, tuple(shape), DTYPE_NAMES[array.dtype])


def run(
    name: str,
    inputs: Sequence[tuple[str, np.ndarray] | None],
    during: Step | None = None,
    **attrs: Any,
) -> list[np.ndarray]:
    """The outputs of an op; every one must have the shape and dtype that the rule says."""
    kind = kinds()[name]
    args = [arg_of(item) for item in inputs]
    expected = kind.outputs(args, attrs)
    arrays = [None if item is None else item[1] for item in inputs]
    step = during or empty_step()
    results = kind.reference(arrays, kind.complete(attrs), step)
    assert len(results) == len(expected)
    for result, arg in zip(results, expected, strict=True):
        count = len(step.rows) if arg.kind == "row" else len(step.positions)
        assert result.shape == (count, *arg.shape)
        assert result.dtype == NUMPY_DTYPES[arg.dtype]
    cost = kind.cost(args, attrs, num_tokens=len(step.positions), context_len=3)
    assert cost.flops >= 0 and cost.bytes > 0
    return results
