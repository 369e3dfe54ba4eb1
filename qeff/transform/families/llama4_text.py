"""Llama 4: the temperature of its layers without rotation, row by row.

The model computes it from the cache's length, one number for the whole batch; here it follows the
positions of each row, and is applied where the queries reach the attention function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from qeff.transform.patch import patched_attr, patched_item
from qeff.transform.trace import Trace


@contextmanager
def hooks(model: nn.Module, trace: Trace) -> Iterator[None]:
    """Replace the batch-wide temperature by one for each row."""
    with ExitStack() as stack:
        for module in model.modules():
            if getattr(module, "attn_temperature_tuning", False) and not module.use_rope:
                stack.enter_context(patched_attr(module, "attn_temperature_tuning", False))
                scale = _scale(module, trace)
                stack.enter_context(patched_item(trace.query_scales, module, scale))
        yield


def _scale(module: Any, trace: Trace) -> Callable[[Tensor], Tensor]:
    def scale(query: Tensor) -> Tensor:
        if trace.step is None:
            return query
        floor = torch.floor((trace.step.positions.float() + 1.0) / module.floor_scale)
        factor = torch.log1p(floor) * module.attn_scale + 1.0  # [B, S]
        return query * factor[:, None, :, None]  # [B, H, S, D]

    return scale
