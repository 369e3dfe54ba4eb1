"""Graph rewrites that change what a step takes: rows as slots, and logits of wanted rows."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from dialect import F32, I64, Builder, Size, build_random

from qeff.compile.passes.rows_are_slots import rows_are_slots
from qeff.compile.passes.select_logits import select_logits
from qeff.compile.passes.transposed_matmul import transposed_matmul


def test_batch_index_disappears() -> None:
    model = build_random(Size(continuous=True))[0].model
    assert rows_are_slots(model) == 8  # a write and a gather for each of four caches
    assert "batch_index" not in [value.name for value in model.graph.inputs]
    assert {node.op_type for node in model.graph} >= {"CacheWrite"}
    assert not {"CacheWriteAt"} & {node.op_type for node in model.graph}
    assert str(model.graph.inputs[2].shape[0]) == "batch_size"
    assert rows_are_slots(model) == 0


def test_the_cut_is_made_before_the_last_norm() -> None:
    model = build_random(Size())[0].model
    cut = select_logits(model)
    node = next(
        n
        for n in model.graph
        if n.op_type == "RMSNormalization" and n.inputs[0].name == "logits_index/select"
    )
    assert node.outputs[0].uses()[0].node.op_type == "MatMul"
    assert (
        next(v for n in model.graph for v in n.outputs if v.name == cut).producer().op_type == "Add"
    )
    logits = model.graph.outputs[0]
    assert logits.name == "logits" and [str(s) for s in logits.shape] == ["logits_rows", "96"]


@pytest.mark.parametrize("kind", ["softcap", "unknown"])
def test_only_wanted_rows_come_out(kind: str) -> None:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((8, 5)).astype(np.float32)
    b = Builder({"w": ir.tensor(w, name="w")})
    x = ir.Value(name="x", shape=ir.Shape(["batch_size", "seq_len", 8]), type=ir.TensorType(F32))
    y = b.add("MatMul", [x, b.weight("w")], ["batch_size", "seq_len", 5])
    if kind == "softcap":
        y = b.add("Div", [y, b.const(3, np.float32)], ["batch_size", "seq_len", 5])
        y = b.add("Tanh", [y], ["batch_size", "seq_len", 5])
        y = b.add("Mul", [y, b.const([3], np.float32)], ["batch_size", "seq_len", 5])
    else:  # mixes tokens: nothing before it may be cut
        y = b.add("CumSum", [y, b.const(1)], ["batch_size", "seq_len", 5])
    y.name = "logits"
    graph = ir.Graph(
        [x], [y], nodes=b.nodes, initializers=list(b.values.values()), opset_imports={"": 24}
    )
    model = ir.Model(graph, ir_version=11)
    data = rng.standard_normal((2, 3, 8)).astype(np.float32)
    before = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    (whole,) = before.run(None, {"x": data})
    assert select_logits(model) == ("logits" if kind == "unknown" else "x")
    after = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    index = np.array([5, 0, 3, 3])
    (rows,) = after.run(None, {"x": data, "logits_index": index})
    np.testing.assert_allclose(rows, whole.reshape(6, 5)[index], rtol=1e-6)


def test_transposed_weights_stay_as_they_are() -> None:
    model = build_random(Size())[0].model
    assert transposed_matmul(model) == 15
    turned = [n for n in model.graph if n.op_type == "Transpose" and n.outputs[0].uses()]
    assert all(n.inputs[0].const_value is None for n in turned)


def test_axes_of_a_slot_index_that_is_reshaped() -> None:
    """An index that went through Reshape is recognised too."""
    model = build_random(Size(continuous=True, layers=1))[0].model
    for node in list(model.graph):
        if node.op_type == "Squeeze" and node.inputs[0].name == "batch_index":
            shape = ir.tensor(np.array([-1]), name=f"{node.name}/shape")
            value = ir.Value(
                name=shape.name, shape=shape.shape, type=ir.TensorType(I64), const_value=shape
            )
            model.graph.register_initializer(value)
            made = ir.node("Reshape", [node.inputs[0], value])
            model.graph.insert_before(node, made)
            node.outputs[0].replace_all_uses_with(made.outputs[0])
            model.graph.remove(node, safe=True)
    assert rows_are_slots(model) == 4
