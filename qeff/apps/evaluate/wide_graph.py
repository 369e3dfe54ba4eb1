"""The float form of a container that holds an ONNX graph: every half becomes a float.

Products of blocks (MatMulNBits) keep their packed weights and are told to compute in float32, which
is the product with the dequantised matrix. Knows graphs; nothing of sessions.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qeff.compile.lowering import SectionWriter
from qeff.compile.passes.constants import sizes
from qeff.compile.passes.fold import values_of
from qeff.container import Container
from qeff.container.format import WEIGHTS
from qeff.container.manifest import Port
from qeff.core.formats import format_of

PROGRAM = "program.onnx"
F32, F16 = ir.DataType.FLOAT, ir.DataType.FLOAT16
BLOCK_PRODUCT, ACCURACY = "MatMulNBits", "accuracy_level"


def widen(container: Container, out: SectionWriter) -> str | None:
    """Hand over the widened graph; the target it is for, None when nothing was narrow."""
    model = ir.load(container.file(PROGRAM))
    is_narrow = _exact_products(model) | _wide_casts(model) | _wide_values(model)
    if not is_narrow:
        return None
    _place_weights(model, out)
    out.inputs = tuple(_port(value) for value in model.graph.inputs)
    out.outputs = tuple(_port(value) for value in model.graph.outputs)
    out.write_bytes(PROGRAM, ir.to_proto(model).SerializeToString(deterministic=True))
    return str(container.manifest.target)


def _exact_products(model: ir.Model) -> bool:
    """Let block products compute in float32 instead of rounding the activations to int8."""
    found = [node for node in model.graph.all_nodes() if node.op_type == BLOCK_PRODUCT]
    for node in found:
        node.attributes[ACCURACY] = ir.AttrInt64(ACCURACY, 0)
    return bool(found)


def _wide_casts(model: ir.Model) -> bool:
    casts = [
        node
        for node in model.graph.all_nodes()
        if node.op_type == "Cast" and node.attributes["to"].as_int() == int(F16)
    ]
    for node in casts:
        node.attributes["to"] = ir.AttrInt64("to", int(F32))
    return bool(casts)


def _wide_values(model: ir.Model) -> bool:
    graph = model.graph
    made = [value for node in graph.all_nodes() for value in node.outputs]
    halves = [v for v in (*graph.inputs, *graph.initializers.values(), *made) if v.dtype == F16]
    for value in halves:
        tensor = value.const_value
        if tensor is not None:
            value.const_value = _floats(tensor)
        value.type = ir.TensorType(F32)
    return bool(halves)


def _floats(tensor: ir.TensorProtocol) -> ir.LazyTensor:
    def compute() -> ir.TensorProtocol:
        return ir.tensor(np.asarray(values_of(tensor)).astype(np.float32))

    return ir.LazyTensor(compute, F32, ir.Shape(sizes(tensor)), name=tensor.name)


def _place_weights(model: ir.Model, out: SectionWriter) -> None:
    """Promise every constant that was outside the graph, and point the graph at its place."""
    stored = [
        value
        for value in model.graph.initializers.values()
        if isinstance(value.const_value, ir.ExternalTensor | ir.LazyTensor)
    ]
    for value in stored:
        tensor = value.const_value
        assert tensor is not None, f"{value.name} has no value"
        _promise(str(value.name), tensor, out)
    places = out.places()
    for value in stored:
        old, entry = value.const_value, places[str(value.name)]
        assert old is not None
        value.const_value = ir.ExternalTensor(
            WEIGHTS,
            entry.start,
            entry.stop - entry.start,
            old.dtype,
            shape=ir.Shape(sizes(old)),
            name=entry.name,
        )


def _promise(name: str, tensor: ir.TensorProtocol, out: SectionWriter) -> None:
    form = format_of(tensor.dtype.numpy()).name
    out.add_weight(name, sizes(tensor), form, lambda: np.asarray(values_of(tensor)))


def _port(value: ir.Value) -> Port:
    assert value.shape is not None and value.dtype is not None, f"{value.name} has no type"
    shape = tuple(size if isinstance(size, int) else str(size.value) for size in value.shape)
    return Port(str(value.name), format_of(value.dtype.numpy()).name, shape)
