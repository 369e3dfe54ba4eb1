"""Constants of a graph as tensors that are computed when read; the graph itself is not touched.

A value is constant when it is an initialiser or a node makes it of constants alone. Two changes of
a weight are told apart instead of computed: a cast to a wider float, which every op does while it
reads, and a transpose, which ``linear`` has an attribute for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from qeff.compile.passes.fold import values_of
from qeff.compile.passes.numpy_ops import EVALUATE

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_DTYPES = {
    ir.DataType.FLOAT: "f32",
    ir.DataType.FLOAT16: "f16",
    ir.DataType.BFLOAT16: "bf16",
    ir.DataType.INT64: "i64",
    ir.DataType.INT32: "i32",
    ir.DataType.BOOL: "bool",
}
MADE = "qeff.made"  # the key under which a computed tensor says what it is made of


@dataclass(frozen=True, slots=True)
class Made:
    """The op that computes a constant, and the constants it takes."""

    op_type: str
    attributes: Mapping[str, Any]
    inputs: tuple[ir.TensorProtocol, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Constant:
    """A tensor and the name under which it goes into the program."""

    name: str
    tensor: ir.TensorProtocol

    @property
    def shape(self) -> tuple[int, ...]:
        return shape_of(self.tensor)

    def read(self) -> np.ndarray:
        """The values, computed anew."""
        return np.asarray(values_of(self.tensor))

    def derive(
        self, suffix: str, shape: tuple[int, ...], change: Callable[[np.ndarray], np.ndarray]
    ) -> Constant:
        """A constant computed from this one when it is read."""
        tensor = ir.LazyTensor(
            lambda: ir.tensor(np.ascontiguousarray(change(self.read())).reshape(shape)),
            self.tensor.dtype,
            ir.Shape(shape),
            name=f"{self.name}/{suffix}",
        )
        return Constant(f"{self.name}/{suffix}", tensor)

    def reshape(self, shape: tuple[int, ...]) -> Constant:
        """The same numbers under another shape."""
        if shape == self.shape:
            return self
        suffix = "shape_" + "x".join(map(str, shape)) if shape else "scalar"
        return self.derive(suffix, shape, lambda array: array.reshape(shape))

    def expand(self, shape: tuple[int, ...]) -> Constant:
        """The same numbers, repeated along axes of size one."""
        if shape == self.shape:
            return self
        suffix = "expand_" + "x".join(map(str, shape))
        return self.derive(suffix, shape, lambda array: np.broadcast_to(array, shape))

    def stored(self) -> tuple[Constant, str]:
        """The constant in an element type that a program knows, and that type's name."""
        dtype = self.tensor.dtype
        if dtype in _DTYPES:
            return self, _DTYPES[dtype]
        name, wide = ("f32", np.float32) if dtype.is_floating_point() else ("i64", np.int64)
        tensor = ir.LazyTensor(
            lambda: ir.tensor(self.read().astype(wide)),
            ir.DataType.FLOAT if name == "f32" else ir.DataType.INT64,
            self.tensor.shape,  # type: ignore[arg-type]
            name=f"{self.name}/{name}",
        )
        return Constant(f"{self.name}/{name}", tensor), name


def shape_of(tensor: ir.TensorProtocol) -> tuple[int, ...]:
    """The sizes of a tensor, which are numbers in every constant."""
    sizes = tuple(size for size in tensor.shape if isinstance(size, int))
    assert len(sizes) == len(tensor.shape), f"constant {tensor.name} has a symbolic size"
    return sizes


class Constants:
    """The constants of one graph, found once each."""

    def __init__(self) -> None:
        self._found: dict[ir.Value, Constant | None] = {}

    def find(self, value: ir.Value) -> Constant | None:
        """The value as a constant, or None when it is none."""
        pending = [value]
        while pending:  # by hand: a graph may be deeper than Python's stack
            current = pending[-1]
            node = current.producer()
            missing = [
                v for v in (node.inputs if node else ()) if v is not None and v not in self._found
            ]
            if current in self._found:
                pending.pop()
            elif missing:
                pending.extend(missing)
            else:
                self._found[current] = self._make(current, node)
                pending.pop()
        return self._found[value]

    def _make(self, value: ir.Value, node: ir.Node | None) -> Constant | None:
        if value.const_value is not None and not value.is_graph_input():
            return Constant(str(value.name), value.const_value)
        if node is None or node.domain not in ("", "ai.onnx") or node.op_type not in EVALUATE:
            return None
        inputs = [None if v is None else self._found[v] for v in node.inputs]
        if any(i is None and v is not None for i, v in zip(inputs, node.inputs, strict=True)):
            return None
        return _promise(value, node, inputs)

    def number(self, value: ir.Value | None) -> np.ndarray | None:
        """The values of a small constant, such as a shape or an axis."""
        found = self.find(value) if value is not None else None
        return found.read() if found is not None else None

    def weight(self, value: ir.Value) -> Constant | None:
        """The constant as it is stored: a cast between floats is left to whoever reads it."""
        while (node := _only(value, "Cast")) is not None:
            source = node.inputs[0]
            assert source is not None and value.dtype is not None, "a cast has one input and a type"
            is_wider = source.dtype in _FLOATS and value.dtype is ir.DataType.FLOAT
            if not is_wider or self.find(source) is None:
                break
            value = source
        return self.find(value)

    def matrix(self, value: ir.Value) -> tuple[Constant, bool] | None:
        """A weight matrix as it is stored, and whether that is the transpose of what is meant."""
        is_transposed = False
        while (node := _only(value, "Transpose", "Cast", "Identity")) is not None:
            source = node.inputs[0]
            assert source is not None, "a transpose has one input"
            if self.find(source) is None:
                break
            if node.op_type == "Transpose":
                perm = node.attributes.get_ints("perm", [1, 0])
                if list(perm) != [1, 0]:
                    break
                is_transposed = not is_transposed
            elif node.op_type == "Cast":
                is_wider = source.dtype in _FLOATS and value.dtype is ir.DataType.FLOAT
                if not is_wider:
                    break
            value = source
        found = self.find(value)
        return None if found is None else (found, is_transposed)


def _only(value: ir.Value, *op_types: str) -> ir.Node | None:
    """The node that makes the value, when it is a standard op of one of these types."""
    node = value.producer()
    return node if node is not None and not node.domain and node.op_type in op_types else None


def evaluate(
    value: ir.Value, node: ir.Node, inputs: Sequence[Constant | None], shape: tuple[int, ...]
) -> Constant:
    """One output of a node of constants, computed when it is read; ``shape`` has no tokens."""
    attributes: dict[str, Any] = {name: attr.value for name, attr in node.attributes.items()}
    index, count = list(node.outputs).index(value), len(node.outputs)
    assert value.dtype is not None, f"{value.name} has no dtype"
    dtype = value.dtype.numpy()

    def compute() -> ir.TensorProtocol:
        arrays = [None if constant is None else _wide(constant.read()) for constant in inputs]
        result = EVALUATE[node.op_type](attributes, arrays, count)[index]
        return ir.tensor(np.array(np.broadcast_to(result, shape), dtype))

    name = str(value.name)
    return Constant(name, ir.LazyTensor(compute, value.dtype, ir.Shape(shape), name=name))


def _wide(array: np.ndarray) -> np.ndarray:
    """A constant is kept as stored, which may be a narrower float than the graph computes in."""
    return array if array.dtype.kind in "iub" else array.astype(np.float32, copy=False)


def _promise(value: ir.Value, node: ir.Node, inputs: list[Constant | None]) -> Constant | None:
    """The node's output as a constant; None when its shape is not known before it is computed."""
    attributes: dict[str, Any] = {name: attr.value for name, attr in node.attributes.items()}
    index, count = list(node.outputs).index(value), len(node.outputs)

    def compute() -> ir.TensorProtocol:
        arrays = [None if constant is None else constant.read() for constant in inputs]
        result = EVALUATE[node.op_type](attributes, arrays, count)[index]
        return ir.tensor(np.ascontiguousarray(result).reshape(np.shape(result)))

    name = str(value.name)
    sizes = [constant.tensor.size for constant in inputs if constant is not None]
    if sum(sizes) <= 1024:
        return Constant(name, compute())
    if value.shape is None or value.dtype is None or not value.shape.is_static():
        return None
    tensor = ir.LazyTensor(compute, value.dtype, value.shape, name=name)
    if count == 1:
        given = tuple(constant.tensor for constant in inputs if constant is not None)
        tensor.meta[MADE] = Made(node.op_type, attributes, given, shape_of(tensor))
    return Constant(name, tensor)
