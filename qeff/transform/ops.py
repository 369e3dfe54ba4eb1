"""The few high-level ops that a traced decoder is made of: opaque to torch, with real CPU bodies.

They keep their meaning through tracing, so that an exporter meets one attention node instead of
twenty; the bodies let the hooked module be run as it is and compared with the original.
Shapes are in the comments; the meaning of positions is that of the graph: -1 marks padding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LOWEST = float(torch.finfo(torch.float32).min)


def opaque(function: Callable[..., Tensor]) -> Any:
    """Make a function an op of the namespace ``qeff`` that tracing does not look into."""
    return torch.library.custom_op(f"qeff::{function.__name__}", function, mutates_args=())


@opaque
def attention(
    q: Tensor,  # [B, H, S, D]
    k: Tensor,  # [B, Hkv, M, D]
    v: Tensor,  # [B, Hkv, M, Dv]
    mask: Tensor | None,  # bool or float, broadcasts to [B, H, S, M]
    kv_len: Tensor | None,  # [B]: given when attention is plainly causal
    sinks: Tensor | None,  # [H]
    scale: float,
    softcap: float,
) -> Tensor:
    """Scaled dot product attention; causal when ``kv_len`` is given, else as ``mask`` says."""
    groups = q.shape[1] // k.shape[1]
    keys, values = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = (q @ keys.transpose(-1, -2)) * scale  # [B, H, S, M]
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, LOWEST) if mask.dtype == torch.bool else scores + mask
    if kv_len is not None:
        last = (kv_len - q.shape[2])[:, None] + torch.arange(q.shape[2])[None]  # [B, S]
        seen = torch.arange(k.shape[2])[None, None, None] <= last[:, None, :, None]
        scores = scores.masked_fill(~seen, LOWEST)
    if sinks is not None:
        extra = sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        return torch.softmax(torch.cat([scores, extra], -1), -1)[..., :-1] @ values
    return torch.softmax(scores, -1) @ values


@attention.register_fake
def _(q, k, v, mask, kv_len, sinks, scale, softcap):
    return q.new_empty(q.shape[0], q.shape[1], q.shape[2], v.shape[3])


@opaque
def cache_write(cache: Tensor, update: Tensor, position_ids: Tensor) -> Tensor:
    """Rows of ``update`` [B, H, S, D] to their positions of ``cache`` [B, H, M, D]."""
    out = cache.clone()
    for b, s in (position_ids >= 0).nonzero().tolist():
        out[b, :, position_ids[b, s]] = update[b, :, s]
    return out


@cache_write.register_fake
def _(cache, update, position_ids):
    return torch.empty_like(cache)


@opaque
def cache_write_at(
    cache: Tensor, update: Tensor, position_ids: Tensor, batch_index: Tensor
) -> Tensor:
    """The same into the slot ``batch_index[b, 0]`` of ``cache`` [slots, H, M, D]."""
    out = cache.clone()
    for b, s in (position_ids >= 0).nonzero().tolist():
        out[batch_index[b, 0], :, position_ids[b, s]] = update[b, :, s]
    return out


@cache_write_at.register_fake
def _(cache, update, position_ids, batch_index):
    return torch.empty_like(cache)


@opaque
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm over the last axis."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


@rms_norm.register_fake
def _(x, weight, eps):
    return x.new_empty(x.shape)


@opaque
def rope(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotate the first 2R features of x [B, H, S, D] by cos and sin [B, S, R]."""
    width = 2 * cos.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    c, s = cos[:, None], sin[:, None]  # [B, 1, S, R]
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        pair = torch.stack([a * c - b * s, a * s + b * c], -1).flatten(-2)
    else:
        a, b = turned.chunk(2, -1)
        pair = torch.cat([a * c - b * s, a * s + b * c], -1)
    return torch.cat([pair, rest], -1)


@rope.register_fake
def _(x, cos, sin, interleaved):
    return x.new_empty(x.shape)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "relu": torch.relu,
    "relu2": lambda x: torch.relu(x).square(),
}


def gated(x: Tensor, gate: str, activation: str, alpha: float, limit: float) -> Tensor:
    """The activation between an expert's two matrices, in each of its known forms."""
    if gate == "none":
        return ACTIVATIONS[activation](x)
    if gate == "half":
        left, right = x.chunk(2, -1)
    else:
        left, right = x[..., 0::2], x[..., 1::2]
    if activation == "swiglu_clamped":
        left, right = left.clamp(max=limit), right.clamp(-limit, limit)
        return left * torch.sigmoid(alpha * left) * (right + 1)
    return ACTIVATIONS[activation](left) * right


@opaque
def moe(
    x: Tensor,  # [T, width]
    index: Tensor,  # [T, k]
    weight: Tensor,  # [T, k]
    up: Tensor,  # [E, out, width], or [E, width, out] when transposed
    down: Tensor,
    up_bias: Tensor | None,  # [E, out]
    down_bias: Tensor | None,
    form: str,  # "gate activation alpha limit transposed", see :func:`moe_form`
) -> Tensor:
    """The weighted sum of each token's k experts."""
    gate, activation, alpha, limit, transposed = read_moe_form(form)
    total = torch.zeros_like(x)
    for t in range(x.shape[0]):
        for j in range(index.shape[1]):
            e = int(index[t, j])
            if e >= up.shape[0]:
                continue
            h = x[t] @ (up[e] if transposed else up[e].T)
            h = gated(h if up_bias is None else h + up_bias[e], gate, activation, alpha, limit)
            h = h @ (down[e] if transposed else down[e].T)
            total[t] += weight[t, j] * (h if down_bias is None else h + down_bias[e])
    return total


@moe.register_fake
def _(x, index, weight, up, down, up_bias, down_bias, form):
    return x.new_empty(x.shape)


def moe_form(gate: str, activation: str, alpha: float, limit: float, transposed: bool) -> str:
    """The attributes of :func:`moe` as one list of words."""
    return f"{gate} {activation} {alpha} {limit} {int(transposed)}"


def read_moe_form(form: str) -> tuple[str, str, float, float, bool]:
    """The inverse of :func:`moe_form`."""
    gate, activation, alpha, limit, transposed = form.split()
    return gate, activation, float(alpha), float(limit), transposed == "1"


@opaque
def window_mask(position_ids: Tensor, cache: Tensor, window: int) -> Tensor:
    """Bool [B, 1, S, M]: key j is seen by the query at p when p - window < j <= p."""
    p = position_ids.clamp(min=0)[:, None, :, None]
    j = torch.arange(cache.shape[2])
    return (j <= p) & (j > p - window)


@opaque
def chunk_mask(position_ids: Tensor, cache: Tensor, chunk: int) -> Tensor:
    """Bool [B, 1, S, M]: key j is seen when j <= p and both lie in the same chunk."""
    p = position_ids.clamp(min=0)[:, None, :, None]
    j = torch.arange(cache.shape[2])
    return (j <= p) & (j // chunk == p // chunk)


@window_mask.register_fake
@chunk_mask.register_fake
def _(position_ids, cache, size):
    batch, seq = position_ids.shape
    return position_ids.new_empty((batch, 1, seq, cache.shape[2]), dtype=torch.bool)


@opaque
def alibi_bias(position_ids: Tensor, cache: Tensor, slopes: list[float]) -> Tensor:
    """Float [B, H, S, M]: slope * (j - p) when j <= p, the lowest float otherwise."""
    p = position_ids.clamp(min=0)[:, None, :, None]
    j = torch.arange(cache.shape[2])
    bias = torch.tensor(slopes)[None, :, None, None] * (j - p)
    return bias.masked_fill(j > p, LOWEST)


@alibi_bias.register_fake
def _(position_ids, cache, slopes):
    batch, seq = position_ids.shape
    size = (batch, len(slopes), seq, cache.shape[2])
    return position_ids.new_empty(size, dtype=torch.float32)
