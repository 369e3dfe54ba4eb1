"""JetMoE: experts in the feed-forward part and in the projections around attention.

The model sorts tokens by expert, with sizes that depend on values. Here the feed-forward part goes
through the op of all mixtures; for the projections every expert runs and the chosen ones are taken.
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
    """Replace the sorting of tokens by expert in both kinds of mixture."""
    with ExitStack() as stack:
        for module in model.modules():
            name = type(module).__name__
            if name == "JetMoeMoE":
                stack.enter_context(patched_attr(module, "forward", _feed_forward(module)))
            elif name == "JetMoeMoA":
                stack.enter_context(patched_attr(module, "map", _queries(module)))
                stack.enter_context(patched_attr(module, "reduce", _outputs(module)))
        yield


def _route(router: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    logits = router.layer(x).float()  # [T, E]
    top, index = logits.topk(router.top_k, dim=1)
    return index, torch.softmax(top, dim=1).type_as(x), logits


def _feed_forward(module: Any) -> Callable[[Tensor], Tensor]:
    form = activation_form(module.activation)

    def forward(layer_input: Tensor) -> Tensor:
        x = layer_input.reshape(-1, module.input_size)
        index, weight, _ = _route(module.router, x)
        matrices = module.input_linear.weight, module.output_linear.weight
        out = torch.ops.qeff.moe(x, index, weight, *matrices, None, None, form)
        return out.view(layer_input.shape) + module.bias

    return forward


def _queries(module: Any) -> Callable[[Tensor], tuple[Tensor, Tensor, Any]]:
    def apply(layer_input: Tensor) -> tuple[Tensor, Tensor, Any]:
        x = layer_input.reshape(-1, module.input_size)
        index, weight, logits = _route(module.router, x)
        experts, width = module.num_experts, module.hidden_size
        matrix = module.input_linear.weight.reshape(experts * width, -1)
        each = (x @ matrix.t()).view(-1, experts, width)  # [T, E, width]
        place = index[:, :, None].expand(-1, -1, width)  # [T, k, width]
        chosen = torch.gather(each, 1, place)
        size = (*layer_input.shape[:2], module.top_k, width)
        return chosen.view(size), logits, (place, weight)

    return apply


def _outputs(module: Any) -> Callable[[Tensor, Any], Tensor]:
    def apply(layer_input: Tensor, route: Any) -> Tensor:
        place, weight = route
        experts, width = module.num_experts, module.hidden_size
        x = layer_input.reshape(-1, module.top_k, width) * weight[:, :, None]
        # An expert that was not chosen gets zeros, which its matrix leaves zeros.
        each = torch.zeros(x.shape[0], experts, width).scatter(1, place, x)
        matrix = module.output_linear.weight.transpose(1, 2).reshape(experts * width, -1)
        out = each.view(-1, experts * width) @ matrix  # [T, input size]
        return out.view(*layer_input.shape[:2], module.input_size) + module.bias

    return apply
