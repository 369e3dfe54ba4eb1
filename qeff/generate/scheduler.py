"""Which tokens of which sequences run in the next step.

Iteration-level: every step is planned anew from the waiting and the running sequences. Decodes come
first, prompts follow in chunks under a budget of tokens, and the youngest sequence gives its blocks
back and is computed again later when they run out. Knows nothing of sampling, text or finishing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from qeff.generate.blocks import BlockAllocator
from qeff.runtime.session import Batch, Capabilities, Span

DEFAULT_STEP_TOKENS = 2048


@dataclass(slots=True, eq=False)
class SequenceState:
    """A sequence on its way: all its tokens, and how many of them the cache holds."""

    id: str
    tokens: list[int]  # prompt, then output
    num_prompt: int
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)

    @property
    def num_pending(self) -> int:
        """Tokens that are known but not in the cache."""
        return len(self.tokens) - self.num_computed

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: the batch, the tokens each sequence runs, and whose logits come back, in order."""

    batch: Batch
    counts: tuple[tuple[SequenceState, int], ...]
    sampled: tuple[SequenceState, ...]


def default_step_tokens(caps: Capabilities) -> int:
    """A budget that lets one whole chunk run beside every decode."""
    most = caps.max_sequences * caps.max_step_tokens
    return min(most, max(DEFAULT_STEP_TOKENS, caps.max_sequences + caps.max_step_tokens))


def num_blocks_for(num_tokens: int, block_len: int) -> int:
    """How many blocks hold this many tokens."""
    return -(-num_tokens // block_len)


class Scheduler:
    """Queues in order of arrival: everything that runs is older than everything that waits."""

    def __init__(
        self, caps: Capabilities, num_blocks: int, max_step_tokens: int | None = None
    ) -> None:
        assert num_blocks >= num_blocks_for(caps.ctx_len, caps.block_len), (
            f"{num_blocks} blocks cannot hold one full context"
        )
        self.caps = caps
        self.blocks = BlockAllocator(num_blocks)
        self.max_step_tokens = max_step_tokens or default_step_tokens(caps)
        self.waiting: deque[SequenceState] = deque()
        self.running: list[SequenceState] = []
        self.num_preemptions = 0

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, sequence: SequenceState) -> None:
        """Put a sequence at the end of the queue."""
        assert len(sequence.tokens) <= self.caps.ctx_len, "a sequence longer than the context"
        self.waiting.append(sequence)

    def remove(self, sequence: SequenceState) -> None:
        """Take a finished or cancelled sequence out and free its blocks."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self._release(sequence)

    def schedule(self) -> Plan | None:
        """Plan the next step; None when there is nothing to do."""
        if not self.has_work:
            return None
        counts: dict[SequenceState, int] = {}
        has_preempted = False
        # 1. What runs already: decodes first, then prompts, each in order of arrival.
        for sequence in sorted(self.running, key=lambda one: one.num_pending > 1):
            count = self._count(sequence, counts)
            if sequence in self.running and count > 0:
                counts[sequence] = count
                has_preempted |= self._grow(sequence, counts)
        # 2. What waits, while blocks, places and budget last. Blocks just taken from a sequence
        #    are needed by an older one, so nothing is admitted in such a step.
        while self.waiting and not has_preempted and self._can_admit(self.waiting[0]):
            count = self._count(self.waiting[0], counts)
            if count == 0:
                break
            sequence = self.waiting.popleft()
            self.running.append(sequence)
            self._reserve(sequence, len(sequence.tokens))
            counts[sequence] = count
        assert counts, "sequences are there but none can run"
        return self._plan(counts)

    def advance(self, plan: Plan) -> None:
        """Note that the step of this plan was run."""
        for sequence, count in plan.counts:
            sequence.num_computed += count

    def _count(self, sequence: SequenceState, counts: dict[SequenceState, int]) -> int:
        budget = self.max_step_tokens - sum(counts.values())
        return min(sequence.num_pending, self.caps.max_step_tokens, budget)

    def _can_admit(self, sequence: SequenceState) -> bool:
        # Room for all known tokens at once, so that prompts do not push one another out half-way,
        # and a block more for each that runs, so that one let in is not pushed out at once.
        needed = num_blocks_for(len(sequence.tokens), self.caps.block_len)
        spare = len(self.running) if self.caps.block_len < self.caps.ctx_len else 0
        has_place = len(self.running) < self.caps.max_sequences
        return has_place and needed + spare <= self.blocks.num_free

    def _reserve(self, sequence: SequenceState, num_tokens: int) -> bool:
        """Give a sequence blocks for this many tokens; False when the free ones do not suffice."""
        needed = num_blocks_for(num_tokens, self.caps.block_len) - len(sequence.blocks)
        if needed > self.blocks.num_free:
            return False
        sequence.blocks.extend(self.blocks.allocate() for _ in range(needed))
        return True

    def _grow(self, sequence: SequenceState, counts: dict[SequenceState, int]) -> bool:
        """Make room for a planned sequence; True when somebody, perhaps itself, had to give way."""
        has_preempted = False
        while not self._reserve(sequence, sequence.num_computed + counts[sequence]):
            victim = self.running.pop()
            self._release(victim)
            self.waiting.appendleft(victim)
            self.num_preemptions += 1
            counts.pop(victim, None)
            has_preempted = True
            if victim is sequence:
                break
        return has_preempted

    def _release(self, sequence: SequenceState) -> None:
        for block in sequence.blocks:
            self.blocks.release(block)
        sequence.blocks.clear()
        sequence.num_computed = 0

    def _plan(self, counts: dict[SequenceState, int]) -> Plan:
        tokens: list[int] = []
        positions: list[int] = []
        spans: list[Span] = []
        rows: list[int] = []
        sampled: list[SequenceState] = []
        for sequence, count in counts.items():
            first, last = sequence.num_computed, sequence.num_computed + count
            spans.append(Span(len(tokens), len(tokens) + count, tuple(sequence.blocks)))
            tokens.extend(sequence.tokens[first:last])
            positions.extend(range(first, last))
            if last == len(sequence.tokens):  # the prompt is read to its end: a token is due
                rows.append(len(tokens) - 1)
                sampled.append(sequence)
        batch = Batch(
            tokens=np.asarray(tokens, np.int64),
            positions=np.asarray(positions, np.int64),
            spans=tuple(spans),
            logit_rows=np.asarray(rows, np.int64),
        )
        return Plan(batch, tuple(counts.items()), tuple(sampled))
