"""What the hooks share while a decoder is traced, and the decoder's face: caches in, caches out.

A :class:`Trace` belongs to one prepared model; its ``step`` holds the tensors of the forward pass
that is being traced. Knows nothing about any architecture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from qeff.core.spec import CacheLayer


@dataclass(slots=True)
class Step:
    """The tensors of one forward pass that hooks deep inside the model need."""

    position_ids: Tensor  # [B, S], -1 marks padding
    positions: Tensor  # [B, S], padding counts as 0
    kv_len: Tensor  # [B]: first position of the row + S
    ctx_len: Any  # M, a symbol
    batch_index: Tensor | None  # [B, 1]
    memo: dict[Any, Any] = field(default_factory=dict)


@dataclass
class Trace:
    """The state of one prepared model's hooks."""

    step: Step | None = None  # None: a dry run without caches
    is_probing: bool = False  # a function of the model is being run on random data
    query_scales: dict[nn.Module, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)  # what the hooks recognised, counted
    directions: set[str] = field(default_factory=set)  # of the masks it asked for: back, both

    def note(self, what: str) -> None:
        self.notes[what] = self.notes.get(what, 0) + 1


class Decoder(nn.Module):
    """forward(input_ids, position_ids, caches[, batch_index]) -> logits, caches."""

    def __init__(
        self, model: nn.Module, trace: Trace, layers: tuple[CacheLayer, ...], call: CallForm
    ) -> None:
        super().__init__()
        self.model = model
        self.trace = trace
        self.layers = layers
        self.call = call

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        caches: list[Tensor],
        batch_index: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        from qeff.transform.cache import make_cache

        positions = position_ids.clamp(min=0)
        self.trace.step = Step(
            position_ids=position_ids,
            positions=positions,
            kv_len=positions[:, 0] + input_ids.shape[1],
            ctx_len=caches[0].shape[2],
            batch_index=batch_index,
        )
        try:
            cache = make_cache(self.trace.step, self.layers, caches)
            known = self.call.arguments(self.trace.step)
            out = self.model(input_ids=input_ids, past_key_values=cache, use_cache=True, **known)
        finally:
            self.trace.step = None
        written: list[Any] = [cache.layers[layer.index] for layer in self.layers]
        return out.logits, [t for layer in written for t in (layer.keys, layer.values)]


@dataclass(frozen=True, slots=True)
class CallForm:
    """Which of the usual arguments a model's forward takes."""

    takes_positions: bool
    takes_mask: bool  # a model that numbers its tokens by the mask gets one of ones

    def arguments(self, step: Step) -> dict[str, Tensor]:
        """The keyword arguments beside tokens and cache."""
        known = {}
        if self.takes_positions:
            known["position_ids"] = step.positions
        if self.takes_mask:
            size = (step.positions.shape[0], step.ctx_len)
            known["attention_mask"] = torch.ones(size, dtype=torch.int64)
        return known
