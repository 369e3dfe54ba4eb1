"""dtype and shape of the small nodes that an emitter adds by itself.

Ops that come from a traced program bring their own; this covers what is put around them: casts,
sizes, broadcasts and moves of axes. Knows nothing about torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import sympy


@dataclass(frozen=True, slots=True)
class Kind:
    """dtype, and the size of each axis: a number or an expression over axis names."""

    dtype: ir.DataType
    dims: tuple[sympy.Expr, ...]


_COMPARISONS = {"Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "And", "Or", "Xor"}
_BROADCASTS = {"Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Mod", "Sum", *_COMPARISONS}
_SAME = {
    *("Cos", "Sin", "Sqrt", "Neg", "Reciprocal", "Log", "Exp", "Sigmoid", "Tanh", "Relu", "Floor"),
    *("Abs", "Identity", "Softplus", "Swish", "Clip", "Softmax", "Ceil", "Round", "Sign", "Not"),
    *("Erf", "CumSum", "Gelu", "IsNaN"),
}


def infer(
    op_type: str,
    kinds: Sequence[Kind | None],
    attrs: Mapping[str, Any],
    inputs: Sequence[ir.Value | None],
) -> Kind:
    """The kind of a node's only output."""
    first = kinds[0]
    assert first is not None, f"{op_type} without a first input"
    if op_type in _SAME:
        return first
    if op_type in _BROADCASTS:
        known = [k for k in kinds if k is not None]
        dtype = ir.DataType.BOOL if op_type in _COMPARISONS else first.dtype
        return Kind(dtype, broadcast([k.dims for k in known]))
    if op_type == "Where":
        assert kinds[1] is not None and kinds[2] is not None, "Where needs both values"
        return Kind(kinds[1].dtype, broadcast([k.dims for k in kinds if k is not None]))
    if op_type == "Cast":
        return Kind(ir.DataType(attrs["to"]), first.dims)
    if op_type == "Shape":
        count = attrs.get("end", len(first.dims)) - attrs.get("start", 0)
        return Kind(ir.DataType.INT64, (sympy.Integer(count),))
    if op_type == "Transpose":
        return Kind(first.dtype, tuple(first.dims[i] for i in attrs["perm"]))
    if op_type == "Concat":
        axis = attrs["axis"] % len(first.dims)
        total = sum((k.dims[axis] for k in kinds if k is not None), sympy.Integer(0))
        return Kind(first.dtype, (*first.dims[:axis], total, *first.dims[axis + 1 :]))
    if op_type in {"Squeeze", "Unsqueeze"}:
        return Kind(first.dtype, _moved(op_type, first.dims, _ints(inputs, 1)))
    raise AssertionError(f"no shape rule for {op_type}")


def broadcast(shapes: Sequence[tuple[sympy.Expr, ...]]) -> tuple[sympy.Expr, ...]:
    """The common shape of several."""
    rank = max(map(len, shapes))
    out = []
    for i in range(rank):
        sizes = [s[i - rank + len(s)] for s in shapes if i - rank + len(s) >= 0]
        out.append(next((size for size in sizes if size != 1), sympy.Integer(1)))
    return tuple(out)


def _ints(inputs: Sequence[ir.Value | None], i: int) -> list[int] | None:
    value = inputs[i] if len(inputs) > i else None
    if value is None:
        return None
    assert value.const_value is not None, "axes must be constant"
    return [int(x) for x in value.const_value.numpy()]


def _moved(
    op_type: str, dims: tuple[sympy.Expr, ...], axes: list[int] | None
) -> tuple[sympy.Expr, ...]:
    if op_type == "Squeeze":
        if axes is None:
            return tuple(d for d in dims if d != 1)
        drop = {a % len(dims) for a in axes}
        return tuple(d for i, d in enumerate(dims) if i not in drop)
    assert axes is not None, "Unsqueeze needs axes"
    rank = len(dims) + len(axes)
    add = {a % rank for a in axes}
    rest = iter(dims)
    return tuple(sympy.Integer(1) if i in add else next(rest) for i in range(rank))
