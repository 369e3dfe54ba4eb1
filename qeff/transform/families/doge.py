"""Doge: a mask made from the values, of which a row keeps only the largest entries.

The model asks whether the keys are more than it keeps; here it always takes the largest entries, as
many as it keeps or as there are keys, which is the same for any length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from qeff.transform.ops import LOWEST
from qeff.transform.patch import patched_attr
from qeff.transform.trace import Trace


@contextmanager
def hooks(model: nn.Module, trace: Trace) -> Iterator[None]:
    """Masks of the model's attention without a question about lengths."""
    with ExitStack() as stack:
        for module in model.modules():
            if hasattr(module, "prepare_dynamic_mask"):
                mask = patched_attr(module, "prepare_dynamic_mask", _mask(trace))
                stack.enter_context(mask)
        yield


def _mask(trace: Trace) -> Callable[..., Tensor]:
    def build(
        hidden_states: Tensor,
        dt_states: Tensor,  # [B, H, M]
        keep_window_size: int = 2048,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        size, step = dt_states.shape[-1], trace.step
        mask = dt_states[:, :, None, :].expand(-1, -1, hidden_states.shape[1], -1)
        if step is None:
            return mask
        seen = torch.arange(size) <= step.positions[:, None, :, None]  # [B, 1, S, M]
        if attention_mask is not None:
            seen = attention_mask if attention_mask.dtype == torch.bool else attention_mask == 0
        mask = torch.where(seen, mask, LOWEST)
        kept = torch.topk(mask, torch.sym_min(keep_window_size, size), dim=-1).indices
        active = torch.zeros_like(mask).scatter(-1, kept, 1.0)
        return torch.where(active == 0.0, LOWEST, mask)

    return build
