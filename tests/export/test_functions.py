"""The functions of the domain ``qeff`` in ONNX Runtime against plain numpy, edges included."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from qeff.export.builder import DOMAIN, OPSET
from qeff.export.functions import functions_for

FLOAT, INT64, BOOL = ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.BOOL


def session_of(
    op_type: str, inputs: dict, out: ir.DataType, attrs: dict | None = None, domain=DOMAIN
):
    """A model of one node; inputs that are None are left out."""
    values = {
        name: ir.Value(
            name=name,
            type=ir.TensorType(
                FLOAT if data.dtype == np.float32 else INT64 if data.dtype == np.int64 else BOOL
            ),
            shape=ir.Shape([None] * data.ndim),
        )
        for name, data in inputs.items()
        if data is not None
    }
    made = []
    for name, value in (attrs or {}).items():
        kind = {int: ir.AttrInt64, float: ir.AttrFloat32, str: ir.AttrString}[type(value)]
        made.append(kind(name, value))
    node = ir.Node(domain, op_type, [values.get(name) for name in inputs], made, name=op_type)
    node.outputs[0].name, node.outputs[0].type = "out", ir.TensorType(out)
    functions = functions_for([node])
    graph = ir.Graph(
        list(values.values()),
        node.outputs,
        nodes=[node],
        opset_imports={"": OPSET, DOMAIN: 1},
        name="one",
    )
    model = ir.Model(graph, ir_version=11, functions=functions)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(ir.to_proto(model).SerializeToString(), options)


def run(
    op_type: str, inputs: dict, out: ir.DataType = FLOAT, attrs: dict | None = None, domain=DOMAIN
):
    session = session_of(op_type, inputs, out, attrs, domain)
    feeds = {name: data for name, data in inputs.items() if data is not None}
    return session.run(None, feeds)[0]


def written(cache, update, positions, slots):
    out = cache.copy()
    for b, row in enumerate(positions):
        for s, place in enumerate(row):
            if place >= 0:
                out[slots[b], :, place] = update[b, :, s]
    return out


POSITIONS = {
    "prefill": [[0, 1, 2, -1], [0, 1, 2, 3]],
    "decode": [[5], [7]],
    "idle row": [[-1, -1, -1], [2, 3, -1]],
    "all idle": [[-1, -1], [-1, -1]],
    "end of context": [[7, -1, -1, -1], [6, 7, -1, -1]],
    "whole context": [list(range(8)), [0, 1, 2, 3, -1, -1, -1, -1]],
}


@pytest.mark.parametrize("name", POSITIONS)
def test_cache_write(name: str) -> None:
    draws = np.random.default_rng(0)
    positions = np.array(POSITIONS[name], np.int64)
    cache = draws.standard_normal((2, 3, 8, 4)).astype(np.float32)
    update = draws.standard_normal((2, 3, positions.shape[1], 4)).astype(np.float32)
    inputs = {"cache": cache, "update": update, "position_ids": positions}
    np.testing.assert_array_equal(
        run("CacheWrite", inputs), written(cache, update, positions, [0, 1])
    )


# Only a row that is idle may share a slot with another.
IN_SLOTS = [(name, slots) for name in POSITIONS for slots in ((3, 1), (0, 4))]
IN_SLOTS += [("idle row", (2, 2)), ("all idle", (2, 2))]


@pytest.mark.parametrize(("name", "slots"), IN_SLOTS)
def test_cache_write_at(name: str, slots: tuple[int, int]) -> None:
    positions = np.array(POSITIONS[name], np.int64)
    draws = np.random.default_rng(1)
    cache = draws.standard_normal((5, 3, 8, 4)).astype(np.float32)
    update = draws.standard_normal((2, 3, positions.shape[1], 4)).astype(np.float32)
    index = np.array(slots, np.int64)[:, None]
    inputs = {"cache": cache, "update": update, "position_ids": positions, "batch_index": index}
    np.testing.assert_array_equal(
        run("CacheWriteAt", inputs), written(cache, update, positions, slots)
    )


@pytest.mark.parametrize("op_type", ["CacheWrite", "CacheWriteAt"])
def test_cache_write_into_its_own_memory(op_type: str) -> None:
    """A session may bind a cache's input and output to the same memory."""
    draws = np.random.default_rng(2)
    positions = np.array([[6, 7, -1, -1], [0, -1, -1, -1]], np.int64)
    cache = draws.standard_normal((2, 3, 8, 4)).astype(np.float32)
    update = draws.standard_normal((2, 3, 4, 4)).astype(np.float32)
    inputs = {"cache": cache, "update": update, "position_ids": positions}
    if op_type == "CacheWriteAt":
        inputs["batch_index"] = np.array([[0], [1]], np.int64)
    expected = written(cache, update, positions, [0, 1])
    session = session_of(op_type, inputs, FLOAT)
    shared = ort.OrtValue.ortvalue_from_numpy(cache)
    binding = session.io_binding()
    for name, data in inputs.items():
        if name != "cache":
            binding.bind_cpu_input(name, data)
    binding.bind_ortvalue_input("cache", shared)
    binding.bind_ortvalue_output("out", shared)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(shared.numpy(), expected)


MASK_POSITIONS = np.array([[3, 4, 5, -1], [0, 1, 2, 3]], np.int64)
CACHE = np.zeros((2, 1, 8, 4), np.float32)


def query_and_key() -> tuple[np.ndarray, np.ndarray]:
    return np.maximum(MASK_POSITIONS, 0)[:, None, :, None], np.arange(8)


@pytest.mark.parametrize("window", [1, 3, 100])
def test_window_mask(window: int) -> None:
    p, j = query_and_key()
    got = run(
        "WindowMask", {"position_ids": MASK_POSITIONS, "cache": CACHE}, BOOL, {"window": window}
    )
    np.testing.assert_array_equal(got, (j <= p) & (j > p - window))


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_chunk_mask(chunk: int) -> None:
    p, j = query_and_key()
    got = run("ChunkMask", {"position_ids": MASK_POSITIONS, "cache": CACHE}, BOOL, {"chunk": chunk})
    np.testing.assert_array_equal(got, (j <= p) & (j // chunk == p // chunk))


def test_alibi_bias() -> None:
    p, j = query_and_key()
    slopes = np.array([0.5, 0.25, 0.1], np.float32)
    inputs = {"position_ids": MASK_POSITIONS, "cache": CACHE, "slopes": slopes}
    lowest = np.finfo(np.float32).min
    expected = np.where(j <= p, slopes[None, :, None, None] * (j - p).astype(np.float32), lowest)
    np.testing.assert_allclose(run("AlibiBias", inputs), expected, rtol=1e-6)


def attention(q, k, v, seen, scale, softcap=0.0, sinks=None):
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat(groups, 1), v.repeat(groups, 1)
    scores = q @ k.swapaxes(-1, -2) * scale
    if softcap:
        scores = np.tanh(scores / softcap) * softcap
    weights = np.where(seen, np.exp(scores), 0)
    total = weights.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks)[None, :, None, None]
    return weights / total @ v


@pytest.mark.parametrize("op_type", ["Attention", "SinkAttention"])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_causal_attention_by_length(op_type: str, softcap: float) -> None:
    """Right padding needs no mask: every query sees the keys up to its own place."""
    starts = (0, 3)
    draws = np.random.default_rng(4)
    q = draws.standard_normal((2, 4, 4, 8)).astype(np.float32)
    k, v = (draws.standard_normal((2, 2, 8, 8)).astype(np.float32) for _ in range(2))
    sinks = draws.standard_normal(4).astype(np.float32)
    length = np.array(starts, np.int64) + 4
    attrs = {"scale": 0.3, "softcap": softcap, "is_causal": 1}
    inputs = {"Q": q, "K": k, "V": v, "attn_mask": None}
    if op_type == "Attention":
        got = run(op_type, inputs | {"a": None, "b": None, "n": length}, FLOAT, attrs, "")
    else:
        got = run(op_type, inputs | {"n": length, "sinks": sinks}, FLOAT, attrs)
    places = np.array(starts)[:, None] + np.arange(4)  # [B, S]
    seen = np.arange(8) <= places[:, None, :, None]
    expected = attention(q, k, v, seen, 0.3, softcap, sinks if op_type == "SinkAttention" else None)
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_sink_attention_with_a_mask() -> None:
    draws = np.random.default_rng(5)
    q = draws.standard_normal((2, 4, 4, 8)).astype(np.float32)
    k, v = (draws.standard_normal((2, 2, 8, 8)).astype(np.float32) for _ in range(2))
    sinks = draws.standard_normal(4).astype(np.float32)
    p, j = query_and_key()
    mask = np.broadcast_to((j <= p) & (j > p - 2), (2, 1, 4, 8)).copy()
    inputs = {"Q": q, "K": k, "V": v, "attn_mask": mask, "n": None, "sinks": sinks}
    got = run("SinkAttention", inputs, FLOAT, {"scale": 0.3, "softcap": 0.0, "is_causal": 0})
    np.testing.assert_allclose(got, attention(q, k, v, mask, 0.3, sinks=sinks), atol=1e-5)


def silu(x):
    return x / (1 + np.exp(-x))


def erf(x):
    from math import erf as one

    return np.vectorize(one)(x)


ACTIVATIONS = {
    "silu": silu,
    "gelu": lambda x: x * 0.5 * (1 + erf(x / np.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
}


FORMS = [(gate, name) for gate in ("half", "interleaved", "none") for name in ACTIVATIONS]
FORMS += [("half", "swiglu_clamped"), ("interleaved", "swiglu_clamped")]  # it always has a gate


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize(("gate", "activation"), FORMS)
def test_moe(gate: str, activation: str, transposed: int) -> None:
    draws = np.random.default_rng(6)
    has_bias = activation == "swiglu_clamped"
    wide = 6 if gate == "none" else 12
    x, up = draws.standard_normal((5, 8)), draws.standard_normal((4, wide, 8))
    down, weight = draws.standard_normal((4, 8, 6)), draws.random((5, 2))
    up_bias, down_bias = draws.standard_normal((4, wide)), draws.standard_normal((4, 8))
    index = np.stack([draws.permutation(4)[:2] for _ in range(5)]).astype(np.int64)
    expected = np.zeros((5, 8))
    for t in range(5):
        for e, share in zip(index[t], weight[t], strict=True):
            h = up[e] @ x[t] + (up_bias[e] if has_bias else 0)
            g, u = (h[:6], h[6:]) if gate == "half" else (h[0::2], h[1::2])
            if gate == "none":
                h = ACTIVATIONS[activation](h)
            elif has_bias:
                g, u = np.minimum(g, 0.8), np.clip(u, -0.8, 0.8)
                h = g / (1 + np.exp(-1.7 * g)) * (u + 1)
            else:
                h = ACTIVATIONS[activation](g) * u
            expected[t] += share * (down[e] @ h + (down_bias[e] if has_bias else 0))
    if transposed:
        up, down = up.swapaxes(1, 2), down.swapaxes(1, 2)
    inputs = {"x": x, "index": index, "weight": weight, "up": up, "down": down}
    attrs = {"gate": gate, "activation": activation, "transposed": transposed}
    if has_bias:
        inputs |= {"up_bias": up_bias, "down_bias": down_bias}
        attrs |= {"alpha": 1.7, "limit": 0.8}
    inputs = {n: d if n == "index" else d.astype(np.float32) for n, d in inputs.items()}
    got = run("MoEBias" if has_bias else "MoE", inputs, FLOAT, attrs)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_two_forms_of_experts_in_one_graph_get_two_bodies() -> None:
    nodes = []
    for gate in ("half", "interleaved", "half"):
        attrs = [
            ir.AttrString("gate", gate),
            ir.AttrString("activation", "silu"),
            ir.AttrInt64("transposed", 0),
        ]
        nodes.append(ir.Node(DOMAIN, "MoE", [ir.Value(name=n) for n in "xiwud"], attrs))
    made = functions_for(nodes)
    assert [(f.name, f.overload) for f in made] == [("MoE", ""), ("MoE", "1")]
    assert [node.overload for node in nodes] == ["", "1", ""]
