"""Folding: constants equal what ONNX Runtime computes, and nothing is read too early."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from dialect import F32, I64, Builder

from qeff.compile.passes.fold import fold, values_of

W = np.arange(24, dtype=np.float32).reshape(4, 6) - 7

CASES = {
    "Transpose": ([W], {"perm": [1, 0]}, [[6, 4]], F32),
    "Cast": ([W], {"to": int(I64)}, [[4, 6]], I64),
    "Concat": ([W, W + 1], {"axis": 1}, [[4, 12]], F32),
    "Reshape": ([W, np.array([0, -1, 2])], {}, [[4, 3, 2]], F32),
    "Unsqueeze": ([W, np.array([0, -1])], {}, [[1, 4, 6, 1]], F32),
    "Squeeze": ([W[:, :1], np.array([1])], {}, [[4]], F32),
    "Slice": (
        [W, np.array([3, 1]), np.array([-99, 99]), np.array([0, 1]), np.array([-2, 2])],
        {},
        [[2, 3]],
        F32,
    ),
    "Split": ([W, np.array([1, 3])], {"axis": 0}, [[1, 6], [3, 6]], F32),
    "Gather": ([W, np.array([[2, -1]])], {"axis": 1}, [[4, 1, 2]], F32),
    "Expand": ([W[:1], np.array([4, 1])], {}, [[4, 6]], F32),
    "Add": ([W, W[0]], {}, [[4, 6]], F32),
    "Sub": ([W, W[:, :1]], {}, [[4, 6]], F32),
    "Mul": ([W, np.float32(3)], {}, [[4, 6]], F32),
    "Div": ([W.astype(np.int64), np.array(4)], {}, [[4, 6]], I64),
    "Neg": ([W], {}, [[4, 6]], F32),
    "Sqrt": ([np.abs(W)], {}, [[4, 6]], F32),
    "Exp": ([W], {}, [[4, 6]], F32),
    "Reciprocal": ([W + 0.5], {}, [[4, 6]], F32),
}


class Watched(ir.Tensor):
    """A tensor that counts how often it is read."""

    reads = 0

    def numpy(self) -> np.ndarray:
        Watched.reads += 1
        return super().numpy()


def model_of(kind: str) -> ir.Model:
    arrays, attrs, shapes, dtype = CASES[kind]
    b = Builder({})
    values = [b.const(a, np.asarray(a).dtype) for a in arrays]
    node = ir.node(kind, values, attrs, num_outputs=len(shapes))
    outputs = []
    extra = []
    for i, (out, shape) in enumerate(zip(node.outputs, shapes, strict=True)):
        out.name, out.shape, out.type = f"v{i}", ir.Shape(shape), ir.TensorType(dtype)
        use = ir.node("Identity", [out])
        use.outputs[0].name = f"y{i}"
        use.outputs[0].shape, use.outputs[0].type = ir.Shape(shape), ir.TensorType(dtype)
        extra.append(use)
        outputs.append(use.outputs[0])
    graph = ir.Graph(
        [],
        outputs,
        nodes=[node, *extra],
        initializers=list(b.values.values()),
        opset_imports={"": 24},
    )
    return ir.Model(graph, ir_version=11)


@pytest.mark.parametrize("kind", CASES)
def test_folded_values_equal_onnx_runtime(kind: str) -> None:
    model = model_of(kind)
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    expected = session.run(None, {})
    for value in model.graph.initializers.values():  # read on demand, as a checkpoint's are
        tensor = Watched(value.const_value.numpy(), name=value.name)
        value.const_value = ir.LazyTensor(lambda t=tensor: t, tensor.dtype, tensor.shape)
    Watched.reads = 0
    assert fold(model) == 1 and Watched.reads == 0
    for node, want in zip(model.graph, expected, strict=True):
        found = values_of(node.inputs[0].const_value)
        assert found.dtype == want.dtype
        np.testing.assert_allclose(found, want, rtol=1e-6)
    assert Watched.reads > 0


def test_chains_are_folded_and_unused_sources_dropped() -> None:
    b = Builder({"w": ir.tensor(W, name="w")})
    x = ir.Value(name="x", shape=ir.Shape(["n", 6]), type=ir.TensorType(F32))
    one = b.add("Add", [b.weight("w"), b.const(1, np.float32)], [4, 6])
    turned = b.add("Transpose", [one], [6, 4], perm=[1, 0])
    y = b.add("MatMul", [x, turned], ["n", 4])
    graph = ir.Graph(
        [x], [y], nodes=b.nodes, initializers=list(b.values.values()), opset_imports={"": 24}
    )
    assert fold(ir.Model(graph, ir_version=11)) == 2
    assert [node.op_type for node in graph] == ["MatMul"]
    (constant,) = graph.initializers.values()
    np.testing.assert_array_equal(values_of(constant.const_value), (W + 1).T)


def test_external_data_is_mapped_for_one_reading(tmp_path: Path) -> None:
    (tmp_path / "f.bin").write_bytes(b"12345678" + W.tobytes())
    tensor = ir.ExternalTensor(
        "f.bin", 8, W.nbytes, F32, shape=ir.Shape(W.shape), name="w", base_dir=str(tmp_path)
    )
    np.testing.assert_array_equal(values_of(tensor), W)
    assert isinstance(values_of(tensor), np.memmap)
