"""Heads that guess the tokens to come: a model whose logits are those of several places ahead.

Head j reads the same hidden state as the model's own head, passes it through residual blocks and
then through that head: its logits are of the token j places after the next one. They stand behind
the model's own in one row, [vocab · (1 + heads)]. Knows nothing about any architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from qeff.core.errors import UnsupportedModel


class Block(nn.Module):
    """x + silu(linear(x))."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        return x + functional.silu(self.linear(x))


def attach_heads(model: Any, numbers: Mapping[str, int]) -> None:
    """Give a causal model its heads; their parameters are ``speculator.<head>.<block>.linear``."""
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        raise UnsupportedModel(
            f"{type(model).__name__} has no plain head that others could share",
            "compile it without its heads",
        )
    blocks = nn.ModuleList(
        nn.Sequential(*(Block(head.in_features) for _ in range(numbers["num_layers"])))
        for _ in range(numbers["num_heads"])
    )
    model.speculator = blocks.requires_grad_(False).eval()

    def spread(_: nn.Module, args: tuple[Any, ...]) -> tuple[Tensor]:
        (x,) = args
        return (torch.stack([x, *(block(x) for block in blocks)], dim=-2),)  # [B, S, 1 + heads, H]

    def join(_: nn.Module, __: tuple[Any, ...], logits: Tensor) -> Tensor:
        return logits.flatten(-2)

    head.register_forward_pre_hook(spread)
    head.register_forward_hook(join)
