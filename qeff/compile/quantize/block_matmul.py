"""Products with a constant matrix become MatMulNBits: weights in blocks, activations in float32.

The weight stays in the order of its rows, [out, in], as checkpoints have it. The head keeps eight
bits when the others have four, since an error there moves every token's probability; embedding
tables are kept in half precision.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from qeff.compile.passes.constants import add_constant, promise, sizes
from qeff.compile.passes.fold import drop_unused, values_of
from qeff.compile.passes.takeover import take_over
from qeff.compile.quantize.blocks import BLOCK_LEN, FORMATS, BlockFormat, pack, packed_shapes
from qeff.compile.quantize.report import ErrorReport
from qeff.container.weights import WeightGroup, WeightSpec
from qeff.core.spec import LOGITS

DOMAIN = "com.microsoft"
F32, F16, UINT8 = ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.UINT8
INT8_ACTIVATIONS = 4  # MatMulNBits' accuracy_level: products of int8 blocks, sums in float32
MIN_VALUES = 4096  # smaller matrices gain nothing


@dataclass(frozen=True, slots=True)
class Quantised:
    """What was replaced: the tensors to be packed, by the name of the first of each group."""

    groups: dict[str, WeightGroup] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    report: ErrorReport = field(default_factory=ErrorReport)


def quantise_matmuls(model: ir.Model, precision: str, head_precision: str) -> Quantised:
    """Rewrite the main graph for weights in a format of :data:`blocks.FORMATS`."""
    graph = model.graph
    done = Quantised()
    head = _head(graph)
    packed: dict[tuple[str, str], tuple[ir.Value, ir.Value]] = {}
    for node in list(graph):
        weight = node.inputs[1] if node.op_type == "MatMul" and node.domain == "" else None
        if weight is None or not _is_matrix(weight):
            continue
        kind, name = ("head", head_precision) if node is head else ("linear", precision)
        key = (str(weight.name), name)
        if key not in packed:
            packed[key] = _promise(graph, weight, FORMATS[name], kind, done)
        done.counts[kind] = done.counts.get(kind, 0) + 1
        _replace(graph, node, packed[key], FORMATS[name].bits)
    model.graph.opset_imports[DOMAIN] = 1
    drop_unused(graph)
    return done


def halve_embeddings(model: ir.Model) -> int:
    """Keep tables that are only looked up in float16, cast after the look-up; returns how many."""
    graph = model.graph
    num_changed = 0
    for value in list(graph.initializers.values()):
        users = [use.node for use in value.uses()]
        if value.dtype != F32 or not _is_matrix(value):
            continue
        if not users or any(
            node.op_type != "Gather" or node.inputs[0] is not value for node in users
        ):
            continue
        num_changed += 1
        _halve(graph, value, users)
    drop_unused(graph)
    return num_changed


def _is_matrix(value: ir.Value) -> bool:
    tensor = value.const_value
    return tensor is not None and len(tensor.shape) == 2 and tensor.size >= MIN_VALUES


def _head(graph: ir.Graph) -> ir.Node | None:
    """The matrix product that makes the logits."""
    value: ir.Value | None = next(v for v in graph.outputs if v.name == LOGITS)
    while value is not None and (node := value.producer()) is not None:
        if node.op_type == "MatMul":
            return node
        value = node.inputs[0] if node.inputs else None
    return None


def _promise(
    graph: ir.Graph, weight: ir.Value, form: BlockFormat, kind: str, done: Quantised
) -> tuple[ir.Value, ir.Value]:
    """Values for packed data and scales, computed together when the weights are written."""
    tensor = weight.const_value
    assert tensor is not None and weight.name is not None
    cols, rows = sizes(tensor)  # MatMul has [in, out], the blocks [out, in]
    data_shape, scale_shape = packed_shapes(rows, cols, form.bits)
    names = f"{weight.name}.{form.name}", f"{weight.name}.{form.name}_scale"

    def produce() -> tuple[np.ndarray, np.ndarray]:
        made = pack(values_of(tensor).T, form)
        done.report.add(kind, str(weight.name), made.error, made.energy)
        return made.data, made.scales

    specs = WeightSpec(names[0], data_shape, "u8"), WeightSpec(names[1], scale_shape, "f32")
    done.groups[names[0]] = WeightGroup(specs, produce)
    return (
        add_constant(graph, names[0], promise(names[0], data_shape, UINT8, lambda: produce()[0])),
        add_constant(graph, names[1], promise(names[1], scale_shape, F32, lambda: produce()[1])),
    )


def _replace(graph: ir.Graph, node: ir.Node, packed: tuple[ir.Value, ir.Value], bits: int) -> None:
    weight, old = node.inputs[1], node.outputs[0]
    assert weight is not None and weight.const_value is not None
    cols, rows = sizes(weight.const_value)
    attributes = {
        "K": cols,
        "N": rows,
        "bits": bits,
        "block_size": BLOCK_LEN,
        "accuracy_level": INT8_ACTIVATIONS,
    }
    made = ir.node(
        "MatMulNBits", [node.inputs[0], *packed], attributes, domain=DOMAIN, name=node.name
    )
    graph.insert_before(node, made)
    take_over(old, made.outputs[0])
    graph.remove(node, safe=True)


def _halve(graph: ir.Graph, value: ir.Value, users: list[ir.Node]) -> None:
    tensor = value.const_value
    assert tensor is not None

    def half() -> np.ndarray:
        return np.asarray(values_of(tensor)).astype(np.float16)

    name = f"{value.name}.f16"
    table = add_constant(graph, name, promise(name, sizes(tensor), F16, half))
    for node in users:
        old = node.outputs[0]
        found = ir.node("Gather", [table, node.inputs[1]], dict(node.attributes), name=node.name)
        cast = ir.node("Cast", [found.outputs[0]], {"to": int(F32)}, name=f"{node.name}/float")
        found.outputs[0].name = f"{old.name}/f16"
        found.outputs[0].shape = old.shape
        found.outputs[0].type = ir.TensorType(F16)
        graph.insert_before(node, [found, cast])
        take_over(old, cast.outputs[0])
        graph.remove(node, safe=True)
