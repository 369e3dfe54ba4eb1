"""LongCat Flash: experts that give back their input, numbered after the real ones.

A token that picked such an expert gets its own state times the weight; the real experts go through
the op that all other mixtures use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from qeff.transform.experts import activation_form
from qeff.transform.patch import patched_attr
from qeff.transform.trace import Trace


@contextmanager
def hooks(model: nn.Module, trace: Trace) -> Iterator[None]:
    """Give every expert module a forward without a loop."""
    with ExitStack() as stack:
        for module in model.modules():
            if type(module).__name__ == "LongcatFlashExperts":
                stack.enter_context(patched_attr(module, "forward", _forward(module)))
        yield


def _forward(module: Any) -> Callable[..., Tensor]:
    form, count = activation_form(module.act_fn), module.num_routed_experts

    def forward(hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        weight = top_k_weights.to(hidden_states.dtype)
        is_real = top_k_index < count  # [T, k]
        kept = torch.where(is_real, 0.0, weight).sum(-1, keepdim=True) * hidden_states
        experts = torch.ops.qeff.moe(
            hidden_states,
            top_k_index.clamp(max=count - 1),
            torch.where(is_real, weight, 0.0),
            module.gate_up_proj[:count],  # [E, 2 * inner, width]
            module.down_proj,
            None,
            None,
            form,
        )
        return experts + kept

    return forward
