"""Rules for the ops that the hooks put into a program.

Attention, cache writes, masks, norms, rotation and experts.
"""

from __future__ import annotations

import onnx_ir as ir
import torch

from qeff.export.builder import DOMAIN
from qeff.export.emission.table import rule
from qeff.export.emitter import Emitter
from qeff.export.fxnode import Node

qeff = torch.ops.qeff


@rule(qeff.rms_norm.default)
def _rms_norm(e: Emitter, node: Node) -> ir.Value:
    x, weight, eps = node.args
    attrs = {"axis": -1, "epsilon": float(eps)}
    return e.op("RMSNormalization", [e.value(x), e.value(weight)], attrs, node=node)


@rule(qeff.rope.default)
def _rope(e: Emitter, node: Node) -> ir.Value:
    x, cos, sin, interleaved = node.args
    width = 2 * int(e.kind(cos).dims[-1])
    attrs = {"interleaved": int(interleaved)}
    if width != e.kind(node).dims[-1]:
        attrs["rotary_embedding_dim"] = width
    inputs = [e.value(x), *(e.tensor(t, e.dtype(node)) for t in (cos, sin))]
    return e.op("RotaryEmbedding", inputs, attrs, node=node)


@rule(qeff.cache_write.default)
def _cache_write(e: Emitter, node: Node) -> ir.Value:
    return e.op("CacheWrite", [e.value(a) for a in node.args], node=node, domain=DOMAIN)


@rule(qeff.cache_write_at.default)
def _cache_write_at(e: Emitter, node: Node) -> ir.Value:
    return e.op("CacheWriteAt", [e.value(a) for a in node.args], node=node, domain=DOMAIN)


@rule(qeff.window_mask.default)
def _window_mask(e: Emitter, node: Node) -> ir.Value:
    positions, cache, window = node.args
    inputs = [e.value(positions), e.value(cache)]
    return e.op("WindowMask", inputs, {"window": window}, node=node, domain=DOMAIN)


@rule(qeff.chunk_mask.default)
def _chunk_mask(e: Emitter, node: Node) -> ir.Value:
    positions, cache, chunk = node.args
    inputs = [e.value(positions), e.value(cache)]
    return e.op("ChunkMask", inputs, {"chunk": chunk}, node=node, domain=DOMAIN)


@rule(qeff.alibi_bias.default)
def _alibi_bias(e: Emitter, node: Node) -> ir.Value:
    positions, cache, slopes = node.args
    values = e.constant(torch.tensor(slopes, dtype=torch.float32))
    inputs = [e.value(positions), e.value(cache), values]
    return e.op("AlibiBias", inputs, node=node, domain=DOMAIN)


@rule(qeff.attention.default)
def _attention(e: Emitter, node: Node) -> ir.Value:
    q, k, v, mask, kv_len, sinks, scale, softcap = node.args
    attrs = {"scale": float(scale), "is_causal": int(kv_len is not None)}
    if softcap:
        attrs["softcap"] = float(softcap)
    states = [e.value(x) for x in (q, k, v)]
    seen = None if mask is None else _mask(e, node, mask)
    length = None if kv_len is None else e.value(kv_len)
    if sinks is not None:
        attrs.setdefault("softcap", 0.0)
        inputs = [*states, seen, length, e.value(sinks)]
        return e.op("SinkAttention", inputs, attrs, node=node, domain=DOMAIN)
    inputs = [*states, seen, None, None, length]
    while inputs[-1] is None:
        inputs.pop()
    return e.op("Attention", inputs, attrs, node=node)


def _mask(e: Emitter, node: Node, mask: Node) -> ir.Value:
    dtype = torch.bool if e.dtype(mask) == torch.bool else e.dtype(node)
    value = e.tensor(mask, dtype)
    dims = e.build.kind(value).dims
    queries = e.kind(node).dims[2]
    if len(dims) >= 2 and dims[-2] != queries:
        # ONNX Runtime broadcasts a mask over batch and heads, not over queries.
        value = e.build.expand(value, (*dims[:-2], queries, dims[-1]))
    return value


@rule(qeff.moe.default)
def _moe(e: Emitter, node: Node) -> ir.Value:
    x, index, weight, up, down, up_bias, down_bias, form = node.args
    gate, activation, alpha, limit, transposed = form.split()
    attrs = {"gate": gate, "activation": activation, "transposed": int(transposed)}
    if activation == "swiglu_clamped":
        attrs |= {"alpha": float(alpha), "limit": float(limit)}
    inputs = [e.value(a) for a in (x, index, weight, up, down)]
    if up_bias is None:
        return e.op("MoE", inputs, attrs, node=node, domain=DOMAIN)
    inputs += [e.value(up_bias), e.value(down_bias)]
    return e.op("MoEBias", inputs, attrs, node=node, domain=DOMAIN)
