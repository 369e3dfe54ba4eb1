"""GPT-Neo: global and local layers, told apart by a table of the longest context.

The model cuts that table by the lengths of queries and keys, as if the keys ended with the last
query. Here attention goes through our op, with a window for local layers and no scale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from qeff.transform.patch import patched_attr
from qeff.transform.trace import Trace


@contextmanager
def hooks(model: nn.Module, trace: Trace) -> Iterator[None]:
    """Every self-attention through our op."""
    with ExitStack() as stack:
        for module in model.modules():
            if type(module).__name__ == "GPTNeoSelfAttention":
                stack.enter_context(patched_attr(module, "_attn", _attention(module, trace)))
        yield


def _attention(module: Any, trace: Trace) -> Callable[..., tuple[Tensor, None]]:
    window = module.config.window_size if module.attention_type == "local" else 0

    def attention(
        query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None
    ) -> tuple[Tensor, None]:
        step, mask, length = trace.step, None, None
        if step is not None and window:
            queries = step.positions[:, None, :, None]
            keys = torch.arange(key.shape[2])
            mask = (keys <= queries) & (keys > queries - window)  # [B, 1, S, M]
        elif step is not None:
            length = step.kv_len
        out = torch.ops.qeff.attention(query, key, value, mask, length, None, 1.0, 0.0)
        return out, None

    return attention
