"""A step in which every running sequence gets one more token, kept so that it can be repeated.

Most steps are like the one before: the same sequences, one token further. Such a step needs no
planning but where a sequence comes to the end of its last block. It can even be begun while the one
before still runs, where the session itself chooses all tokens. Knows nothing of who may run.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from qeff.generate.cache_blocks import CacheBlocks
from qeff.generate.plan import Plan, table_of
from qeff.generate.sequence import SequenceState
from qeff.runtime.session import Batch, Span


class Steady:
    """A plan, and what changes of it from step to step.

    Good as long as the same sequences run and none of them shares the block that it writes.
    """

    def __init__(self, plan: Plan, cache: CacheBlocks) -> None:
        self._entries = plan.entries
        self._sequences = [entry.sequence for entry in plan.entries]
        self._cache = cache
        self._rows = plan.batch.logit_rows
        self._positions = plan.batch.positions
        self._spans = plan.batch.spans  # the same object from step to step, while nothing changes
        self._choices = plan.batch.choices
        self._limits = np.array([self._limit(index) for index in range(len(self._spans))])
        self.is_chosen = self._choices is not None and bool(
            (self._choices["temperature"] >= 0).all()
        )
        self._chosen_before = -1 - np.arange(len(self._spans))

    @staticmethod
    def fits(plan: Plan, cache: CacheBlocks) -> bool:
        """Whether a step can be repeated: nothing but decodes, and no block moves or goes."""
        return (
            cache.window is None
            and not plan.copies
            and all(
                entry.count == 1
                and entry.is_due
                and not entry.draft.tokens
                and entry.sequence.num_computed >= entry.sequence.num_prompt
                for entry in plan.entries
            )
        )

    def repeat(self) -> Plan | None:
        """The same one token further; None where a sequence is not ready or finds no block."""
        if self._positions[0] + 1 != self._sequences[0].num_computed:
            return None  # the last step failed
        tokens = []
        for sequence in self._sequences:
            if sequence.is_parked or len(sequence.tokens) - sequence.num_computed != 1:
                return None
            tokens.append(sequence.tokens[-1])
        return self._further(np.array(tokens, np.int64))

    def foresee(self) -> Plan | None:
        """The step after the one that still runs: its tokens are those which that one chooses."""
        return self._further(self._chosen_before)

    def _further(self, tokens: np.ndarray) -> Plan | None:
        positions = self._positions + 1
        for index in (positions >= self._limits).nonzero()[0].tolist():
            if not self._cache.reserve(self._sequences[index], int(positions[index]) + 1):
                return None
            span = Span(index, index + 1, table_of(self._sequences[index]))
            self._spans = (*self._spans[:index], span, *self._spans[index + 1 :])
            self._limits[index] = self._limit(index)
        self._positions = positions
        if self._choices is not None:
            self._choices = self._choices.copy()
            self._choices["index"] += 1
        batch = Batch(tokens, positions, self._spans, self._rows, choices=self._choices)
        return Plan(batch, self._entries, (), is_steady=True)

    def advance(self, plan: Plan, gone: Collection[SequenceState] = ()) -> None:
        """Note that a step was run, in which some sequences had ended already."""
        is_full = (plan.batch.positions + 1) % self._cache.block_len == 0
        for sequence, fills_block in zip(self._sequences, is_full.tolist(), strict=True):
            if sequence not in gone:
                sequence.num_computed += 1
                if fills_block:
                    self._cache.note_content(sequence)

    def _limit(self, index: int) -> int:
        """The first position that the blocks of a sequence do not hold."""
        return len(self._sequences[index].blocks) * self._cache.block_len
