"""Constant folding without values: a node of constants becomes a constant, computed when read.

Nothing is read here and no result is held: reading a folded constant reads its sources, runs the
ops and lets go. A node of an unknown kind stays a node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from qeff.compile.passes.constants import add_constant, promise, sizes
from qeff.compile.passes.numpy_ops import EVALUATE


def fold(model: ir.Model) -> int:
    """Replace constant nodes of the main graph; returns how many."""
    graph = model.graph
    num_folded = 0
    for node in list(graph):
        tensors = _constant_inputs(node)
        evaluate = EVALUATE.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        if (
            evaluate is None
            or tensors is None
            or any(out.is_graph_output() for out in node.outputs)
        ):
            continue
        made = [_promise(node, i, tensors, evaluate) for i in range(len(node.outputs))]
        if any(tensor is None for tensor in made):
            continue
        for output, tensor in zip(list(node.outputs), made, strict=True):
            assert tensor is not None
            value = add_constant(graph, _folded_name(graph, node, output), tensor)
            output.replace_all_uses_with(value)
        graph.remove(node, safe=True)
        num_folded += 1
    drop_unused(graph)
    return num_folded


def _folded_name(graph: ir.Graph, node: ir.Node, output: ir.Value) -> str:
    """The name of the one large input that it is made of, with the op; else the value's own."""
    given = [value for value in node.inputs if value is not None and value.const_value is not None]
    roots = [str(v.name) for v in given if v.const_value is not None and v.const_value.size > 1024]
    name = f"{roots[0]}.{node.op_type.lower()}" if len(roots) == 1 else str(output.name)
    if name in graph.initializers or name == output.name:
        name = f"{output.name}.folded"
    return name


def drop_unused(graph: ir.Graph) -> None:
    """Remove initialisers that nothing uses."""
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del graph.initializers[name]


def values_of(tensor: ir.TensorProtocol) -> np.ndarray:
    """A tensor's values; external data is mapped for this one reading only."""
    if isinstance(tensor, ir.ExternalTensor) and tensor.dtype.bitwidth >= 8:
        shape = sizes(tensor)
        if 0 in shape:
            return np.empty(shape, tensor.dtype.numpy())
        return np.memmap(tensor.path, tensor.dtype.numpy(), "r", tensor.offset or 0, shape)
    return tensor.numpy()


def _constant_inputs(node: ir.Node) -> list[ir.TensorProtocol | None] | None:
    """The inputs' tensors (None for an input left out), or None when one is not constant."""
    tensors: list[ir.TensorProtocol | None] = []
    for value in node.inputs:
        if value is None:
            tensors.append(None)
        elif value.const_value is not None and not value.is_graph_input():
            tensors.append(value.const_value)
        else:
            return None
    return tensors if tensors or node.op_type == "Constant" else None


def _promise(
    node: ir.Node,
    index: int,
    tensors: Sequence[ir.TensorProtocol | None],
    evaluate: Callable[..., Sequence[np.ndarray]],
) -> ir.TensorProtocol | None:
    """Output ``index`` as a constant to be computed later; None when its shape is unknown."""
    output = node.outputs[index]
    attributes: dict[str, Any] = {name: attr.value for name, attr in node.attributes.items()}
    num_outputs = len(node.outputs)

    def compute() -> np.ndarray:
        inputs = [None if tensor is None else values_of(tensor) for tensor in tensors]
        return np.asarray(evaluate(attributes, inputs, num_outputs)[index])

    given = [tensor for tensor in tensors if tensor is not None]
    if all(isinstance(t, ir.Tensor | ir.TensorProtoTensor) and t.size <= 1024 for t in given):
        return ir.tensor(compute())  # small and in memory already
    shape = [size for size in output.shape or (None,) if isinstance(size, int)]
    if output.shape is None or output.dtype is None or len(shape) != len(output.shape):
        return None
    return promise(str(output.name), shape, output.dtype, compute)
