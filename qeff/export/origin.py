"""Writes a parameter's origin as nodes: checkpoint tensors, and what is made of them.

An initialiser has the checkpoint tensor's name, dtype and shape; stacking, cutting, transposing and
the cast to the compute dtype are nodes that a compiler folds. Knows nothing about torch.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
import sympy

from qeff.core.tensor import LazyTensor
from qeff.export.builder import Builder
from qeff.export.infer import Kind
from qeff.export.tensors import CheckpointTensor, graph_dtype
from qeff.transform.artifact import (
    Concat,
    Expression,
    Leaf,
    Permute,
    Reshape,
    Slice,
    leaves,
)


class WeightWriter:
    """Turns origins into graph values."""

    def __init__(
        self,
        build: Builder,
        origins: Mapping[str, Expression],
        tensors: Mapping[str, LazyTensor],
    ) -> None:
        self.build, self.origins, self.tensors = build, origins, tensors

    def parameter(self, name: str, dtype: ir.DataType) -> ir.Value:
        """The value of a parameter in the dtype that the model computes in."""
        origin = self.origins[name]
        stored = {graph_dtype(self.tensors[leaf.name]) for leaf in leaves(origin)}
        if len(stored) == 1:
            return self.build.cast(self._write(origin, None), dtype)
        return self._write(origin, dtype)  # parts differ: each is cast before they meet

    def _write(self, origin: Expression, dtype: ir.DataType | None) -> ir.Value:
        build = self.build
        match origin:
            case Leaf(name=name):
                value = build.initializer(name, CheckpointTensor(self.tensors[name]))
                return value if dtype is None else build.cast(value, dtype)
            case Concat(parts=parts, axis=axis):
                return build.op("Concat", [self._write(p, dtype) for p in parts], {"axis": axis})
            case Permute(source=source, perm=perm):
                return build.op("Transpose", [self._write(source, dtype)], {"perm": list(perm)})
            case Slice(source=source, axis=axis, start=start, stop=stop):
                value = self._write(source, dtype)
                places = [build.const([i]) for i in (start, stop, axis)]
                return build.op("Slice", [value, *places], kind=self._kind(value, origin))
            case Reshape(source=source):
                value = self._write(source, dtype)
                return build.reshape(value, self._kind(value, origin))
        raise AssertionError(f"unknown origin {origin}")

    def _kind(self, value: ir.Value, origin: Expression) -> Kind:
        return Kind(self.build.kind(value).dtype, tuple(map(sympy.Integer, origin.shape)))
