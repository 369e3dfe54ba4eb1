"""DBRX: experts whose matrices lie one below the other in tensors of two axes.

The model loops over the experts that were hit; here the matrices are cut by expert and given to
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
            if type(module).__name__ == "DbrxExperts":
                stack.enter_context(patched_attr(module, "forward", _forward(module)))
        yield


def _forward(module: Any) -> Callable[..., Tensor]:
    form = activation_form(module.mlp.activation_fn)

    def forward(hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        size = (module.num_experts, module.ffn_hidden_size, module.hidden_size)
        gate, up, down = (getattr(module.mlp, n).view(size) for n in ("w1", "v1", "w2"))
        out = torch.ops.qeff.moe(
            hidden_states.reshape(-1, module.hidden_size),
            top_k_index,
            top_k_weights.to(hidden_states.dtype),
            torch.cat([gate, up], 1),  # [E, 2 * ffn, width]
            down.transpose(1, 2),  # [E, width, ffn]
            None,
            None,
            form,
        )
        return out.view(hidden_states.shape)

    return forward
