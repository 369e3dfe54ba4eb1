"""What each foldable ONNX op does to numpy arrays.

Only ops that stand between a checkpoint's tensors and their use; each takes attributes, inputs
(None = left out) and the number of outputs. Views are returned where numpy can make one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

Evaluate = Callable[[Mapping[str, Any], Sequence[Any], int], Sequence[np.ndarray]]


def _transpose(attrs: Mapping[str, Any], inputs: Sequence[Any], _: int) -> Sequence[np.ndarray]:
    return (np.transpose(inputs[0], attrs.get("perm")),)


def _cast(attrs: Mapping[str, Any], inputs: Sequence[Any], _: int) -> Sequence[np.ndarray]:
    return (inputs[0].astype(ir.DataType(attrs["to"]).numpy(), copy=False),)


def _concat(attrs: Mapping[str, Any], inputs: Sequence[Any], _: int) -> Sequence[np.ndarray]:
    return (np.concatenate(inputs, axis=attrs["axis"]),)


def _reshape(attrs: Mapping[str, Any], inputs: Sequence[Any], _: int) -> Sequence[np.ndarray]:
    data, shape = inputs[0], [int(size) for size in inputs[1]]
    if not attrs.get("allowzero", 0):
        shape = [data.shape[i] if size == 0 else size for i, size in enumerate(shape)]
    return (data.reshape(shape),)


def _unsqueeze(attrs: Mapping[str, Any], inputs: Sequence[Any], _: int) -> Sequence[np.ndarray]:
    return (np.expand_dims(inputs[0], tuple(int(axis) for axis in inputs[1])),)


def _squeeze(attrs: Mapping[str, Any], inputs: Sequence[Any], _: int) -> Sequence[np.ndarray]:
    axes = tuple(int(axis) for axis in inputs[1]) if len(inputs) > 1 else None
    return (np.squeeze(inputs[0], axes),)


def _slice(attrs: Mapping[str, Any], inputs: Sequence[Any], _: int) -> Sequence[np.ndarray]:
    data, starts, stops = inputs[0], inputs[1], inputs[2]
    axes = inputs[3] if len(inputs) > 3 and inputs[3] is not None else range(len(starts))
    steps = inputs[4] if len(inputs) > 4 and inputs[4] is not None else [1] * len(starts)
    cut: list[slice] = [slice(None)] * data.ndim
    for start, stop, axis, step in zip(starts, stops, axes, steps, strict=True):
        size, low = data.shape[int(axis)], int(stop)
        # A negative step past the first element has no end that numpy can write as a number.
        end = None if step < 0 and low < -size else low
        cut[int(axis)] = slice(int(start), end, int(step))
    return (data[tuple(cut)],)


def _split(attrs: Mapping[str, Any], inputs: Sequence[Any], count: int) -> Sequence[np.ndarray]:
    data, axis = inputs[0], attrs.get("axis", 0)
    if len(inputs) > 1 and inputs[1] is not None:
        sizes = [int(size) for size in inputs[1]]
    else:  # all of one size but the last, which takes what is left
        whole = data.shape[axis]
        each = -(-whole // count)
        sizes = [min(each, whole - i * each) for i in range(count)]
    return np.split(data, np.cumsum(sizes)[:-1], axis=axis)


def _gather(attrs: Mapping[str, Any], inputs: Sequence[Any], _: int) -> Sequence[np.ndarray]:
    return (np.take(inputs[0], inputs[1], axis=attrs.get("axis", 0)),)


def _expand(attrs: Mapping[str, Any], inputs: Sequence[Any], _: int) -> Sequence[np.ndarray]:
    shape = np.broadcast_shapes(inputs[0].shape, tuple(int(size) for size in inputs[1]))
    return (np.broadcast_to(inputs[0], shape),)


def _constant(attrs: Mapping[str, Any], _: Sequence[Any], count: int) -> Sequence[np.ndarray]:
    ((name, value),) = attrs.items()
    if name == "value":
        return (value.numpy(),)
    return (np.asarray(value, np.int64 if name in ("value_int", "value_ints") else np.float32),)


def _binary(function: Callable[[Any, Any], Any]) -> Evaluate:
    def evaluate(attrs: Mapping[str, Any], inputs: Sequence[Any], _: int) -> Sequence[np.ndarray]:
        first, second = inputs
        return (np.asarray(function(first, second), first.dtype),)

    return evaluate


def _unary(function: Callable[[Any], Any]) -> Evaluate:
    def evaluate(attrs: Mapping[str, Any], inputs: Sequence[Any], _: int) -> Sequence[np.ndarray]:
        return (np.asarray(function(inputs[0]), inputs[0].dtype),)

    return evaluate


def _divide(first: Any, second: Any) -> Any:
    if np.issubdtype(first.dtype, np.integer):
        return np.trunc(first / second)  # ONNX rounds integers towards zero
    return first / second


def _reduce(function: Callable[..., Any]) -> Evaluate:
    def evaluate(attrs: Mapping[str, Any], inputs: Sequence[Any], _: int) -> Sequence[np.ndarray]:
        given = inputs[1] if len(inputs) > 1 and inputs[1] is not None else attrs.get("axes", ())
        axes = tuple(int(axis) for axis in given) or None
        if axes is None and attrs.get("noop_with_empty_axes", 0):
            return (inputs[0],)
        result = function(inputs[0], axis=axes, keepdims=bool(attrs.get("keepdims", 1)))
        return (np.asarray(result, inputs[0].dtype),)

    return evaluate


def _matmul(attrs: Mapping[str, Any], inputs: Sequence[Any], _: int) -> Sequence[np.ndarray]:
    return (np.matmul(inputs[0], inputs[1]),)


EVALUATE: dict[str, Evaluate] = {
    "Constant": _constant,
    "Transpose": _transpose,
    "Cast": _cast,
    "Concat": _concat,
    "Reshape": _reshape,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Slice": _slice,
    "Split": _split,
    "Gather": _gather,
    "Expand": _expand,
    "Identity": _unary(lambda x: x),
    "Add": _binary(np.add),
    "Sub": _binary(np.subtract),
    "Mul": _binary(np.multiply),
    "Div": _binary(_divide),
    "Neg": _unary(np.negative),
    "Sqrt": _unary(np.sqrt),
    "Exp": _unary(np.exp),
    "Reciprocal": _unary(np.reciprocal),
    "Abs": _unary(np.abs),
    "Cos": _unary(np.cos),
    "Log": _unary(np.log),
    "Sin": _unary(np.sin),
    "Softplus": _unary(lambda x: np.logaddexp(x, 0)),
    "Tanh": _unary(np.tanh),
    "Max": _binary(np.maximum),
    "Min": _binary(np.minimum),
    "Pow": _binary(np.power),
    "MatMul": _matmul,
    "ReduceMax": _reduce(np.max),
    "ReduceMean": _reduce(np.mean),
    "ReduceMin": _reduce(np.min),
    "ReduceSum": _reduce(np.sum),
}
