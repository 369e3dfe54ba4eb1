"""Drives a session as a benchmark does: equal prompts, then the likeliest token each time.

No text, no schedule and no sampling, so that what is timed is the session. Knows nothing of
clocks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np

from qeff.runtime.session import CHOICE, GREEDY, Batch, Overlapping, Session, Span


class Driver:
    """A session with cache blocks for a number of sequences."""

    def __init__(self, session: Session, num_sequences: int) -> None:
        caps = session.caps
        assert num_sequences <= caps.max_sequences, "the plan was checked"
        self.session = session
        each = -(-caps.ctx_len // caps.block_len)
        self._blocks = [tuple(range(i * each, (i + 1) * each)) for i in range(num_sequences)]
        session.reserve(each * num_sequences)

    def prefill(self, prompts: np.ndarray) -> np.ndarray:
        """Run whole prompts [B, P], one after the other; the first token [B] of each answer."""
        return np.array([self._prompt(row, prompt) for row, prompt in enumerate(prompts)], np.int64)

    def decode(self, tokens: np.ndarray, start: int, count: int) -> np.ndarray:
        """Go on from ``tokens`` [B], which stand at ``start``, for ``count`` steps."""
        size = len(tokens)
        spans = tuple(Span(row, row + 1, self._blocks[row]) for row in range(size))
        rows = np.arange(size)
        if self.session.caps.overlaps:
            return self._decode_ahead(tokens, range(start, start + count), spans)
        for position in range(start, start + count):
            positions = np.full(size, position, np.int64)
            tokens = self._step(Batch(tokens, positions, spans, rows))
        return tokens

    def _decode_ahead(
        self, tokens: np.ndarray, positions: range, spans: tuple[Span, ...]
    ) -> np.ndarray:
        """The same, each step begun before the one before has ended."""
        session, rows = cast(Overlapping, self.session), np.arange(len(tokens))
        choices = np.array([GREEDY] * len(rows), CHOICE)
        begun = None
        for position in positions:
            places = np.full(len(rows), position, np.int64)
            following = session.begin(Batch(tokens, places, spans, rows, choices=choices))
            if begun is not None:
                begun.result()
            begun, tokens = following, -1 - rows
        if begun is None:
            return tokens
        output = begun.result()
        assert output.tokens is not None, "every row had a choice"
        return output.tokens

    def _prompt(self, row: int, prompt: np.ndarray) -> int:
        width = self.session.caps.max_step_tokens
        found = np.empty(0, np.int64)
        for start in range(0, len(prompt), width):
            part = prompt[start : start + width]
            is_last = start + width >= len(prompt)
            batch = Batch(
                tokens=part,
                positions=np.arange(start, start + len(part)),
                spans=(Span(0, len(part), self._blocks[row]),),
                logit_rows=np.array([len(part) - 1] if is_last else [], np.int64),
            )
            found = self._step(batch)
        return int(found[-1])

    def _step(self, batch: Batch) -> np.ndarray:
        if self.session.caps.chooses:
            batch = replace(batch, choices=np.array([GREEDY] * len(batch.logit_rows), CHOICE))
        output = self.session.step(batch)
        return output.logits.argmax(axis=-1) if output.tokens is None else output.tokens
