"""Constants of a graph: their sizes as plain numbers, and adding one, there already or promised."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir


def sizes(tensor: ir.TensorProtocol) -> tuple[int, ...]:
    """A constant's shape as whole numbers."""
    return tuple(size for size in tensor.shape if isinstance(size, int))


def promise(
    name: str, shape: Sequence[int], dtype: ir.DataType, compute: Callable[[], np.ndarray]
) -> ir.LazyTensor:
    """A tensor whose values are computed each time they are read, and never kept."""
    return ir.LazyTensor(lambda: ir.tensor(compute()), dtype, ir.Shape(shape), name=name)


def add_constant(graph: ir.Graph, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """Make a tensor an initialiser of the graph."""
    value = ir.Value(
        name=name,
        shape=ir.Shape(sizes(tensor)),
        type=ir.TensorType(tensor.dtype),
        const_value=tensor,
    )
    graph.register_initializer(value)
    return value
