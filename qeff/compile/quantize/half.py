"""Half precision: activations, caches and weights in float16, what positions give in float32.

Angles of rotary embeddings and masks are made from positions, where float16 is too coarse; they
are rounded only where they meet an activation. An op that is not known to be safe in float16 runs
in float32 between two casts.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qeff.compile.passes.cache_write import DOMAIN
from qeff.compile.passes.constants import add_constant, promise, sizes
from qeff.compile.passes.fold import drop_unused, values_of
from qeff.core.spec import LOGITS, POSITION_IDS, RETAINED

F32, F16 = ir.DataType.FLOAT, ir.DataType.FLOAT16

_SAFE = {
    *("MatMul", "Gemm", "Add", "Sub", "Mul", "Attention", "RotaryEmbedding", "RMSNormalization"),
    *("LayerNormalization", "Swish", "Gelu", "Sigmoid", "Tanh", "Relu", "Gather", "Reshape"),
    *("Transpose", "Unsqueeze", "Squeeze", "Concat", "Split", "Slice", "Expand", "Identity"),
    *("CacheWrite", "CacheWriteAt"),
}
# Ops of ours that ask a cache only for its shape.
_SHAPE_ONLY = {"WindowMask": 1, "ChunkMask": 1, "AlibiBias": 1}


def to_half(model: ir.Model) -> None:
    """Rewrite the main graph; ``logits`` stay float32."""
    _Halver(model.graph).run()
    drop_unused(model.graph)


def halve_caches(model: ir.Model) -> None:
    """Keep the caches in float16 and all else as it is; attention runs in float16."""
    halver = _Halver(model.graph)
    halver.run(only={"CacheWrite", "CacheWriteAt", "Attention"})
    drop_unused(model.graph)


class _Halver:
    """Walks the nodes in order, knowing which values are activations."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._casts: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}
        self._active = {value for value in graph.inputs if value.name != POSITION_IDS}

    def run(self, only: set[str] | None = None) -> None:
        safe = _SAFE if only is None else only
        for value in self._graph.inputs:
            if value.dtype == F32:
                value.type = ir.TensorType(F16)
        for node in list(self._graph):
            if node.op_type == "Shape" or not any(value in self._active for value in node.inputs):
                continue
            self._active.update(node.outputs)
            if node.op_type == "Cast":
                continue
            is_known = node.domain in ("", DOMAIN)
            self._convert(node, F16 if is_known and node.op_type in safe else F32)
        self._fix_outputs()

    def _convert(self, node: ir.Node, dtype: ir.DataType) -> None:
        """Make every float input ``dtype``, and the float outputs too."""
        for i, value in enumerate(node.inputs):
            if value is None or value.dtype not in (F32, F16) or _SHAPE_ONLY.get(node.op_type) == i:
                continue
            if value.dtype != dtype:
                node.replace_input_with(i, self._cast(value, dtype))
        for output in node.outputs:
            if output.dtype in (F32, F16):
                output.type = ir.TensorType(dtype)

    def _cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        key = (value, dtype)
        if key not in self._casts:
            is_constant = value.const_value is not None and not value.is_graph_input()
            make = self._cast_constant if is_constant else self._cast_value
            self._casts[key] = make(value, dtype)
        return self._casts[key]

    def _cast_constant(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        tensor = value.const_value
        assert tensor is not None

        def compute() -> np.ndarray:
            with np.errstate(over="ignore"):
                return np.asarray(values_of(tensor)).astype(dtype.numpy())

        name = f"{value.name}.{dtype.short_name()}"
        return add_constant(self._graph, name, promise(name, sizes(tensor), dtype, compute))

    def _cast_value(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        name = f"{value.name}/{dtype.short_name()}"
        node = ir.node("Cast", [value], {"to": int(dtype)}, name=name)
        # Beside the value's maker, so that every later user may share it.
        maker = value.producer()
        if maker is not None:
            self._graph.insert_after(maker, node)
        else:
            self._graph.insert_before(self._graph.node(0), node)
        made = node.outputs[0]
        made.name, made.shape, made.type = name, value.shape, ir.TensorType(dtype)
        return made

    def _fix_outputs(self) -> None:
        for i, value in enumerate(list(self._graph.outputs)):
            wanted = F16 if str(value.name).endswith(RETAINED) else F32
            if value.dtype in (F32, F16) and value.dtype != wanted:
                name = value.name
                node = ir.node("Cast", [value], {"to": int(wanted)}, name=f"{name}/cast")
                self._graph.append(node)
                value.name = f"{name}/raw"
                made = node.outputs[0]
                made.name, made.shape, made.type = name, value.shape, ir.TensorType(wanted)
                self._graph.outputs[i] = made
        assert any(value.name == LOGITS for value in self._graph.outputs), "logits are an output"
