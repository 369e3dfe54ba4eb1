"""Blocks: every value within a step, and the same product as ONNX Runtime's own kernel."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qeff.compile.quantize.blocks import FORMATS, pack, packed_shapes, unpack
from qeff.compile.quantize.report import ErrorReport


@given(
    rows=st.integers(1, 5),
    cols=st.integers(1, 100),
    seed=st.integers(0, 99),
    name=st.sampled_from(["int4", "int8"]),
)
def test_every_value_is_within_a_step(rows: int, cols: int, seed: int, name: str) -> None:
    rng = np.random.default_rng(seed)
    matrix = (rng.standard_normal((rows, cols)) * 10.0 ** rng.integers(-6, 6, (rows, 1))).astype(
        np.float32
    )
    made = pack(matrix, FORMATS[name])
    shapes = packed_shapes(rows, cols, FORMATS[name].bits)
    assert (made.data.shape, made.scales.shape) == shapes
    found = unpack(made.data, made.scales, cols)
    # Four bits have one level less on the far side of zero: there the error may be a whole step.
    steps = np.repeat(np.abs(made.scales), 32, axis=1)[:, :cols]
    assert (np.abs(found - matrix) <= steps * (0.501 if name == "int8" else 1.001)).all()
    assert made.error == pytest.approx(np.square(found - matrix, dtype=np.float64).sum(), rel=1e-3)


def test_zeros_stay_zeros() -> None:
    for form in FORMATS.values():
        made = pack(np.zeros((2, 64), np.float32), form)
        assert not unpack(made.data, made.scales, 64).any() and made.error == 0


def test_large_matrices_are_packed_in_pieces_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = np.random.default_rng(0).standard_normal((37, 70)).astype(np.float32)
    whole = pack(matrix, FORMATS["int4"])
    monkeypatch.setattr("qeff.compile.quantize.blocks._CHUNK_VALUES", 300)
    parts = pack(matrix.astype(np.float64).astype(np.float32), FORMATS["int4"])
    np.testing.assert_array_equal(whole.data, parts.data)
    np.testing.assert_array_equal(whole.scales, parts.scales)


@pytest.mark.parametrize("name", list(FORMATS))
@pytest.mark.parametrize("cols", [64, 70])
def test_onnx_runtime_reads_the_blocks_as_we_do(name: str, cols: int) -> None:
    rng = np.random.default_rng(1)
    matrix = rng.standard_normal((24, cols)).astype(np.float32)
    x = rng.standard_normal((3, cols)).astype(np.float32)
    made = pack(matrix, FORMATS[name])
    names = {"b": made.data, "s": made.scales}
    values = {}
    for key, array in names.items():
        tensor = ir.tensor(array, name=key)
        values[key] = ir.Value(
            name=key, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor
        )
    a = ir.Value(name="a", shape=ir.Shape(["n", cols]), type=ir.TensorType(ir.DataType.FLOAT))
    attrs = {"K": cols, "N": 24, "bits": FORMATS[name].bits, "block_size": 32, "accuracy_level": 1}
    node = ir.node("MatMulNBits", [a, values["b"], values["s"]], attrs, domain="com.microsoft")
    y = node.outputs[0]
    y.name, y.shape, y.type = "y", ir.Shape(["n", 24]), ir.TensorType(ir.DataType.FLOAT)
    graph = ir.Graph(
        [a],
        [y],
        nodes=[node],
        initializers=list(values.values()),
        opset_imports={"": 24, "com.microsoft": 1},
    )
    proto = ir.to_proto(ir.Model(graph, ir_version=11))
    (found,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"a": x})
    np.testing.assert_allclose(found, x @ unpack(made.data, made.scales, cols).T, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("mxfp6", ml_dtypes.float6_e2m3fn), ("mxfp4", ml_dtypes.float4_e2m1fn)],
)
def test_mx_blocks_are_those_of_the_specification(name: str, dtype: type) -> None:
    rng = np.random.default_rng(2)
    blocks = rng.standard_normal((64, 32)) * 10.0 ** rng.integers(-9, 9, (64, 1))
    blocks = blocks.astype(np.float32)
    # All ties: halves between neighbouring elements, under a shared scale of one.
    grid = np.arange(256, dtype=np.uint8)[: 1 << (6 if name == "mxfp6" else 4)]
    grid = grid.view(dtype).astype(np.float32)
    grid = np.unique(np.abs(grid))
    ties = (grid[:-1] + grid[1:]) / 2
    rows = [np.r_[grid[-1], ties[i : i + 31], np.zeros(31)][:32] for i in range(0, len(ties), 31)]
    blocks = np.concatenate([blocks, np.asarray(rows, np.float32)])
    made = pack(blocks, FORMATS[name])
    found = unpack(made.data, made.scales, 32)
    # OCP MX v1.0 §6.3: shared exponent floor(log2(max)) − 2, elements by round to nearest even.
    scale = np.exp2(np.floor(np.log2(np.abs(blocks).max(1, keepdims=True))) - 2)
    top = grid[-1]
    expected = np.clip(blocks / scale, -top, top).astype(dtype).astype(np.float32) * scale
    np.testing.assert_array_equal(found, expected.astype(np.float32))


def test_report_names_the_worst_tensor() -> None:
    report = ErrorReport()
    report.add("linear", "good", 1.0, 100.0)
    report.add("linear", "bad", 9.0, 100.0)
    assert report.summary() == {
        "linear": {
            "tensors": 2,
            "relative_rms_error": 0.2236,
            "worst_tensor": "bad",
            "worst_relative_rms_error": 0.3,
        }
    }
