"""A small Llama written by hand in the graph dialect, and the same model in numpy.

The numpy side shares no code with the graph: it runs one sequence at a time, with no
cache and no padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from qeff.core.spec import CacheLayer, ModelSpec

F32, I64 = ir.DataType.FLOAT, ir.DataType.INT64


@dataclass(frozen=True)
class Size:
    vocab: int = 96
    width: int = 64
    inner: int = 96
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    tied: bool = True
    continuous: bool = False
    theta: float = 10000.0
    eps: float = 1e-5


@dataclass(frozen=True)
class FakeGraph:
    """What compile needs of a Graph."""

    model: ir.Model
    spec: ModelSpec
    certificate: Mapping[str, Any] = field(default_factory=lambda: {"max_abs_error": 1e-6})


def random_weights(size: Size, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    q, kv = size.heads * size.head_dim, size.kv_heads * size.head_dim
    weights = {"model.embed_tokens.weight": normal(size.vocab, size.width) * 4}
    for i in range(size.layers):
        at = f"model.layers.{i}."
        weights[at + "input_layernorm.weight"] = 1 + normal(size.width)
        weights[at + "self_attn.q_proj.weight"] = normal(q, size.width) * 2
        weights[at + "self_attn.k_proj.weight"] = normal(kv, size.width) * 2
        weights[at + "self_attn.v_proj.weight"] = normal(kv, size.width)
        weights[at + "self_attn.o_proj.weight"] = normal(size.width, q)
        weights[at + "post_attention_layernorm.weight"] = 1 + normal(size.width)
        weights[at + "mlp.gate_proj.weight"] = normal(size.inner, size.width)
        weights[at + "mlp.up_proj.weight"] = normal(size.inner, size.width)
        weights[at + "mlp.down_proj.weight"] = normal(size.width, size.inner)
    weights["model.norm.weight"] = 1 + normal(size.width)
    if not size.tied:
        weights["lm_head.weight"] = normal(size.vocab, size.width) * 2
    return weights


def eager(size: Size, weights: Mapping[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """Logits [len, vocab] of one sequence, in float64."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    x = w["model.embed_tokens.weight"][tokens]
    num, half = len(tokens), size.head_dim // 2
    angles = np.arange(num)[:, None] * size.theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]

    def norm(v: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return v / np.sqrt((v**2).mean(-1, keepdims=True) + size.eps) * weight

    def rope(v: np.ndarray) -> np.ndarray:
        a, b = v[..., :half], v[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    for i in range(size.layers):
        at = f"model.layers.{i}."
        h = norm(x, w[at + "input_layernorm.weight"])
        q = rope((h @ w[at + "self_attn.q_proj.weight"].T).reshape(num, size.heads, -1))
        k = rope((h @ w[at + "self_attn.k_proj.weight"].T).reshape(num, size.kv_heads, -1))
        v = (h @ w[at + "self_attn.v_proj.weight"].T).reshape(num, size.kv_heads, -1)
        k, v = (np.repeat(t, size.heads // size.kv_heads, 1) for t in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(size.head_dim)
        scores = np.where(np.tril(np.ones((num, num), bool)), scores, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        y = np.einsum("hqk,khd->qhd", p, v).reshape(num, -1)
        x = x + y @ w[at + "self_attn.o_proj.weight"].T
        h = norm(x, w[at + "post_attention_layernorm.weight"])
        gate, up = h @ w[at + "mlp.gate_proj.weight"].T, h @ w[at + "mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[at + "mlp.down_proj.weight"].T
    head = w["model.embed_tokens.weight" if size.tied else "lm_head.weight"]
    return norm(x, w["model.norm.weight"]) @ head.T


class Builder:
    """Adds nodes with names, dtypes and shapes, as an export does."""

    def __init__(self, tensors: Mapping[str, ir.TensorProtocol]) -> None:
        self.nodes: list[ir.Node] = []
        self.values: dict[str, ir.Value] = {}
        self.tensors = tensors

    def weight(self, name: str) -> ir.Value:
        if name not in self.values:
            t = self.tensors[name]
            self.values[name] = ir.Value(
                name=name, shape=t.shape, type=ir.TensorType(t.dtype), const_value=t
            )
        return self.values[name]

    def const(self, data: Any, dtype: Any = np.int64) -> ir.Value:
        array = np.asarray(data, dtype)
        name = f"const_{len(self.values)}"
        t = ir.tensor(array, name=name)
        self.values[name] = ir.Value(
            name=name, shape=t.shape, type=ir.TensorType(t.dtype), const_value=t
        )
        return self.values[name]

    def add(
        self,
        kind: str,
        inputs: list[ir.Value | None],
        shape: list[int | str],
        dtype: ir.DataType = F32,
        domain: str = "",
        **attrs: Any,
    ) -> ir.Value:
        node = ir.node(kind, inputs, attrs, domain=domain, name=f"n{len(self.nodes)}/{kind}")
        value = node.outputs[0]
        value.name = f"v{len(self.nodes)}"
        value.shape, value.type = ir.Shape(shape), ir.TensorType(dtype)
        self.nodes.append(node)
        return value

    def linear(self, x: ir.Value, name: str) -> ir.Value:
        weight = self.weight(name)
        rows, cols = (int(n) for n in weight.shape)
        if weight.dtype != F32:
            weight = self.add("Cast", [weight], [rows, cols], to=int(F32))
        turned = self.add("Transpose", [weight], [cols, rows], perm=[1, 0])
        return self.add("MatMul", [x, turned], ["batch_size", "seq_len", rows])


def cache_write(with_slots: bool) -> ir.Function:
    """Rows of padding write back what the cache held; the others what the update holds."""
    slots = (
        "(cache, update, position_ids, batch_index)"
        if with_slots
        else "(cache, update, position_ids)"
    )
    pick = "rows = Gather<axis = 0>(cache, flat)" if with_slots else "rows = Identity(cache)"
    flat = "flat = Reshape(batch_index, minus)" if with_slots else "flat = Identity(minus)"
    put = (
        'made = TensorScatter<axis = 2, mode = "circular">(rows, kept, start)\n'
        "place = Unsqueeze(flat, one_axis)\n"
        "result = ScatterND(cache, place, made)"
        if with_slots
        else 'result = TensorScatter<axis = 2, mode = "circular">(rows, kept, start)'
    )
    name = "CacheWriteAt" if with_slots else "CacheWrite"
    text = f"""
    <ir_version: 11, opset_import: ["" : 24, "qeff" : 1]>
    main (float[1,1,4,1] a) => (float[1,1,4,1] b) {{ b = Identity(a) }}
    <domain: "qeff", opset_import: ["" : 24]>
    {name} {slots} => (result) {{
        zero = Constant<value_ints = [0]>()
        minus = Constant<value_ints = [-1]>()
        one_axis = Constant<value_ints = [1]>()
        two_axis = Constant<value_ints = [2]>()
        three = Constant<value_ints = [3]>()
        outer = Constant<value_ints = [1, 3]>()
        zero_0d = Constant<value_int = 0>()
        one_0d = Constant<value_int = 1>()
        {flat}
        {pick}
        first = Gather<axis = 1>(position_ids, zero_0d)
        start = Max(first, zero)
        seq = Shape<start = 1, end = 2>(position_ids)
        seq_0d = Squeeze(seq)
        steps = Range(zero_0d, seq_0d, one_0d)
        begin = Unsqueeze(start, one_axis)
        long = Add(begin, steps)
        len = Shape<start = 2, end = 3>(cache)
        wrapped = Mod(long, len)
        lifted = Unsqueeze(wrapped, outer)
        whole = Shape(update)
        index = Expand(lifted, whole)
        old = GatherElements<axis = 2>(rows, index)
        bad = Less(position_ids, zero)
        is_pad = Unsqueeze(bad, outer)
        kept = Where(is_pad, old, update)
        {put}
    }}
    """
    model = ir.from_onnx_text(text)
    return next(iter(model.functions.values()))


def build(size: Size, tensors: Mapping[str, ir.TensorProtocol], name: str = "tiny") -> FakeGraph:
    b = Builder(tensors)
    batch, seq, ctx = "batch_size", "seq_len", "ctx_len"
    slots = "full_batch_size" if size.continuous else batch

    def port(label: str, shape: list[int | str], dtype: ir.DataType = I64) -> ir.Value:
        return ir.Value(name=label, shape=ir.Shape(shape), type=ir.TensorType(dtype))

    ids, positions = port("input_ids", [batch, seq]), port("position_ids", [batch, seq])
    inputs, outputs = [ids, positions], []
    index = None
    if size.continuous:
        index = port("batch_index", [batch, 1])
        inputs.append(index)
    half, d = size.head_dim // 2, size.head_dim
    table = b.weight("model.embed_tokens.weight")
    if table.dtype != F32:
        table = b.add("Cast", [table], [size.vocab, size.width], to=int(F32))
    x = b.add("Gather", [table, ids], [batch, seq, size.width], axis=0)
    freq = b.const(size.theta ** (-np.arange(half) / half), np.float32)
    clean = b.add("Max", [positions, b.const(0)], [batch, seq], I64)
    real = b.add("Cast", [clean], [batch, seq], to=int(F32))
    wide = b.add("Unsqueeze", [real, b.const([2])], [batch, seq, 1])
    angle = b.add("Mul", [wide, freq], [batch, seq, half])
    cos, sin = (b.add(kind, [angle], [batch, seq, half]) for kind in ("Cos", "Sin"))
    first = b.add("Gather", [positions, b.const(0)], [batch], I64, axis=1)
    seq_len = b.add("Shape", [ids], [1], I64, start=1, end=2)
    nonpad = b.add("Add", [first, seq_len], [batch], I64)

    for i in range(size.layers):
        at = f"model.layers.{i}."
        caches = []
        for kind in ("key", "value"):
            cache = port(f"past_{kind}.{i}", [slots, size.kv_heads, ctx, d], F32)
            inputs.append(cache)
            caches.append(cache)

        def heads(h: ir.Value, label: str, count: int, at: str = at) -> ir.Value:
            y = b.linear(h, f"{at}self_attn.{label}_proj.weight")
            y = b.add("Reshape", [y, b.const([0, 0, count, d])], [batch, seq, count, d])
            return b.add("Transpose", [y], [batch, count, seq, d], perm=[0, 2, 1, 3])

        def normed(v: ir.Value, label: str) -> ir.Value:
            return b.add(
                "RMSNormalization",
                [v, b.weight(label)],
                [batch, seq, size.width],
                axis=-1,
                epsilon=size.eps,
            )

        h = normed(x, at + "input_layernorm.weight")
        q, k, v = (
            heads(h, "q", size.heads),
            heads(h, "k", size.kv_heads),
            heads(h, "v", size.kv_heads),
        )
        q = b.add("RotaryEmbedding", [q, cos, sin], [batch, size.heads, seq, d])
        k = b.add("RotaryEmbedding", [k, cos, sin], [batch, size.kv_heads, seq, d])
        seen = []
        for cache, update in zip(caches, (k, v), strict=True):
            shape = [slots, size.kv_heads, ctx, d]
            if index is None:
                put = b.add("CacheWrite", [cache, update, positions], shape, domain="qeff")
                seen.append(put)
            else:
                put = b.add("CacheWriteAt", [cache, update, positions, index], shape, domain="qeff")
                flat = b.add("Squeeze", [index, b.const([1])], [batch], I64)
                seen.append(b.add("Gather", [put, flat], [batch, *shape[1:]], axis=0))
            put.name = f"{cache.name}_RetainedState"
            outputs.append(put)
        y = b.add(
            "Attention",
            [q, *seen, None, None, None, nonpad],
            [batch, size.heads, seq, d],
            is_causal=1,
            scale=float(d**-0.5),
        )
        y = b.add("Transpose", [y], [batch, seq, size.heads, d], perm=[0, 2, 1, 3])
        y = b.add("Reshape", [y, b.const([0, 0, size.heads * d])], [batch, seq, size.heads * d])
        x = b.add("Add", [x, b.linear(y, at + "self_attn.o_proj.weight")], [batch, seq, size.width])
        h = normed(x, at + "post_attention_layernorm.weight")
        gate, up = b.linear(h, at + "mlp.gate_proj.weight"), b.linear(h, at + "mlp.up_proj.weight")
        gate = b.add("Swish", [gate], [batch, seq, size.inner])
        both = b.add("Mul", [gate, up], [batch, seq, size.inner])
        x = b.add("Add", [x, b.linear(both, at + "mlp.down_proj.weight")], [batch, seq, size.width])

    h = b.add(
        "RMSNormalization",
        [x, b.weight("model.norm.weight")],
        [batch, seq, size.width],
        axis=-1,
        epsilon=size.eps,
    )
    logits = b.linear(h, "model.embed_tokens.weight" if size.tied else "lm_head.weight")
    logits.name = "logits"
    graph = ir.Graph(
        inputs,
        [logits, *outputs],
        nodes=b.nodes,
        name="main",
        initializers=list(b.values.values()),
        opset_imports={"": 24, "qeff": 1},
    )
    model = ir.Model(graph, ir_version=11, functions=[cache_write(size.continuous)])
    caches = tuple(
        CacheLayer(i, size.kv_heads, size.head_dim, size.head_dim) for i in range(size.layers)
    )
    num_params = sum(int(np.prod(t.shape)) for t in tensors.values())
    spec = ModelSpec(
        name, "TinyForCausalLM", "tiny", size.vocab, size.layers, num_params, None, caches
    )
    return FakeGraph(model, spec)


def build_random(size: Size, seed: int = 0) -> tuple[FakeGraph, dict[str, np.ndarray]]:
    weights = random_weights(size, seed)
    return build(
        size, {name: ir.tensor(array, name=name) for name, array in weights.items()}
    ), weights
