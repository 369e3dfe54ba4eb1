"""A step that was begun: its results are on their way to the host.

Tokens come back alone; logits of the rows that have no choice, or where nothing was chosen. Of
heads that guess, only the guesses do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from qeff.backends.cuda.session.graphs import Made
from qeff.runtime.session import Batch, Capabilities, StepOutput


@dataclass(slots=True)
class Pending:
    """Host memory that a copy is filling, and the event that ends it."""

    logits: torch.Tensor
    tokens: torch.Tensor | None
    batch: Batch
    guesses: torch.Tensor | None = None
    done: torch.cuda.Event | None = None

    @classmethod
    def make(cls, made: Made, batch: Batch, caps: Capabilities) -> Pending:
        """Start the copies of what was asked for."""
        num_rows, choices = len(batch.logit_rows), batch.choices
        logits = torch.empty((0, caps.vocab_size))
        guesses = None
        if made.logits is not None:
            rows = made.logits[:num_rows]
            if caps.num_heads:
                parts = rows.unflatten(1, (1 + caps.num_heads, caps.vocab_size))
                rows, guesses = parts[:, 0], _to_host(parts[:, 1:].argmax(-1))
            if choices is not None and len(choices):
                wanted = torch.from_numpy(np.flatnonzero(choices["temperature"] < 0))
                rows = rows.index_select(0, wanted.to(rows.device))
            logits = _to_host(rows)
        tokens = None if made.tokens is None else _to_host(made.tokens[:num_rows])
        pending = cls(logits, tokens, batch, guesses)
        if logits.is_pinned() or (tokens is not None and tokens.is_pinned()):
            pending.done = torch.cuda.Event()
            pending.done.record()
        return pending

    @classmethod
    def nothing(cls, batch: Batch, caps: Capabilities) -> Pending:
        """A step without tokens."""
        tokens = None if batch.choices is None else torch.empty(0, dtype=torch.int64)
        guesses = torch.empty((0, caps.num_heads), dtype=torch.int64) if caps.num_heads else None
        return cls(torch.empty((0, caps.vocab_size)), tokens, batch, guesses)

    def result(self) -> StepOutput:
        """Wait for the step, and give what it made."""
        if self.done is not None:
            self.done.synchronize()
        logits = self.logits.numpy()
        choices = self.batch.choices
        if choices is None:
            guesses = None if self.guesses is None else self.guesses.numpy()
            return StepOutput(logits, guesses=guesses)
        num_rows = len(self.batch.logit_rows)
        if self.tokens is None:
            return StepOutput(logits, np.full(num_rows, -1, np.int64))
        tokens = self.tokens.numpy().copy()
        tokens[choices["temperature"] < 0] = -1
        return StepOutput(logits, tokens)


def _to_host(x: torch.Tensor) -> torch.Tensor:
    """A copy on its way; pinned memory, so that nobody waits for it here."""
    if not x.is_cuda:
        return x.clone()
    host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    host.copy_(x, non_blocking=True)
    return host
