"""Attention and masks: every way in which transformers' models compute attention leads to one op.

Models that use the attention interface get our function and our masks; models that call torch's
scaled_dot_product_attention get it replaced; models with attention code of their own run their
"eager" path with float masks, and an exporter fuses what they traced. Knows nothing about caches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import masking_utils
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from qeff.transform.ops import LOWEST
from qeff.transform.patch import patched_attr, patched_item
from qeff.transform.trace import Trace

NAME = "qeff"  # of our attention and mask functions in transformers' registries


@contextmanager
def attention_hooks(trace: Trace) -> Iterator[None]:
    """Attention and masks through our op, for as long as the context lasts."""
    masks = type(ALL_MASK_ATTENTION_FUNCTIONS)._global_mapping
    functions = type(ALL_ATTENTION_FUNCTIONS)._global_mapping
    with (
        patched_item(functions, NAME, _attention_function(trace)),
        patched_item(masks, NAME, _mask_function(trace, as_float=False)),
        patched_item(masks, "sdpa", _mask_function(trace, as_float=False)),
        patched_item(masks, "eager", _mask_function(trace, as_float=True)),
        patched_attr(F, "scaled_dot_product_attention", _sdpa(trace)),
    ):
        yield


def _attention_function(trace: Trace) -> Callable[..., tuple[Tensor, None]]:
    def forward(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        scale = kwargs.get("scaling")
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        if module in trace.query_scales:
            query = trace.query_scales[module](query)
        mask = _with_bias(attention_mask, kwargs.get("position_bias"))
        if isinstance(scale, Tensor):  # a learned or per-position scale
            query, scale = query * scale, 1.0
        out = torch.ops.qeff.attention(
            query,
            key,
            value,
            mask,
            _causal_len(trace, mask),
            kwargs.get("s_aux"),
            float(scale),
            float(kwargs.get("softcap") or 0.0),
        )
        return out.transpose(1, 2).contiguous(), None  # [B, S, H, Dv]

    return forward


def _with_bias(mask: Tensor | None, bias: Tensor | None) -> Tensor | None:
    if bias is None:
        return mask
    if mask is None:
        return bias
    return torch.where(mask, bias, LOWEST) if mask.dtype == torch.bool else bias + mask


def _causal_len(trace: Trace, mask: Tensor | None) -> Tensor | None:
    # A mask says everything itself; without one, attention is causal over the written cache.
    return trace.step.kv_len if mask is None and trace.step is not None else None


def _mask_function(trace: Trace, *, as_float: bool) -> Callable[..., Tensor | None]:
    def build(
        batch_size: Any,
        q_length: Any,
        kv_length: Any,
        mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
        dtype: torch.dtype = torch.float32,
        **kwargs: Any,
    ) -> Tensor | None:
        sees_ahead = mask_function is masking_utils.bidirectional_mask_function
        trace.directions.add("both" if sees_ahead else "back")
        if mask_function is masking_utils.causal_mask_function and not as_float:
            return None  # the attention op is causal by itself
        step = trace.step
        queries = step.positions if step is not None else torch.arange(q_length)[None]
        mask = mask_function(
            torch.arange(batch_size)[:, None, None, None],
            torch.zeros(1, 1, 1, 1, dtype=torch.int64),
            queries[:, None, :, None],
            torch.arange(kv_length)[None, None, None, :],
        )  # [B or 1, 1, S, M]
        mask = mask.expand(batch_size, 1, q_length, kv_length)
        return torch.where(mask, 0.0, torch.finfo(dtype).min) if as_float else mask

    return build


def _sdpa(trace: Trace) -> Callable[..., Tensor]:
    original = F.scaled_dot_product_attention

    def sdpa(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **kwargs: Any,
    ) -> Tensor:
        if query.dim() != 4:
            return original(query, key, value, attn_mask, dropout_p, is_causal, **kwargs)
        scale = kwargs.get("scale")
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        kv_len = _causal_len(trace, attn_mask)
        return torch.ops.qeff.attention(
            query, key, value, attn_mask, kv_len, None, float(scale), 0.0
        )

    return sdpa
