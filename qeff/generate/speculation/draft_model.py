"""Guesses of a second, smaller model: it runs ahead of the target, one token at a time.

The draft session keeps cache blocks of its own for each sequence. Tokens that the target accepted
are what its cache holds already, or are caught up with; going back only lowers a count. All
sequences share its steps. Its tokens are sampled with the target's settings and random numbers, so
that where the models agree the tokens do. Knows nothing of the target's session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from qeff.core.errors import OptionValueError, ResourceError
from qeff.generate.blocks import BlockAllocator
from qeff.generate.sampling import Row, SampleError, sample
from qeff.generate.speculation.draft import Ask, Draft
from qeff.runtime.session import Batch, Session, Span

NEAR = 16.0  # logits further below the largest add nothing to a confidence, and take time


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """How many tokens a model knows: logits may be padded, so the tokenizer's number counts."""

    num_logits: int
    num_tokens: int | None = None  # of the tokenizer, where there is one


def check_vocabularies(target: Vocabulary, draft: Vocabulary) -> None:
    """Refuse a draft model that does not speak the target's tokens."""
    if target.num_tokens is not None and draft.num_tokens is not None:
        numbers = target.num_tokens, draft.num_tokens
        what = "tokenizer"
    else:
        numbers = target.num_logits, draft.num_logits
        what = "vocabulary"
    if numbers[0] != numbers[1]:
        raise OptionValueError(
            f"the draft model's {what} has {numbers[1]} tokens and the target's {numbers[0]}",
            "take a draft model of the target's family, with the same tokenizer",
        )


class DraftModelProposer:
    """Chains made by a draft session, which the proposer owns and closes.

    Args:
        session: The draft model.
        target: The target's vocabulary.
        draft: The draft's, when more is known of it than the session says.
        num_blocks: Cache blocks of the draft; by default a full context for every sequence.
        min_confidence: A draft ends before a token that its model thinks less likely than this.
    """

    makes_trees = False

    def __init__(
        self,
        session: Session,
        target: Vocabulary,
        *,
        draft: Vocabulary | None = None,
        num_blocks: int | None = None,
        min_confidence: float = 0.0,
    ) -> None:
        check_vocabularies(target, draft or Vocabulary(session.caps.vocab_size))
        self.session = session
        self._num_logits = target.num_logits
        self._min_confidence = min_confidence
        self._blocks = BlockAllocator(_choose_num_blocks(session, num_blocks))
        session.reserve(self._blocks.num_blocks)
        self._tracks: dict[str, _Track] = {}  # the longest idle first

    @property
    def num_free_blocks(self) -> int:
        return self._blocks.num_free

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """Run the draft model ahead of all sequences together."""
        active = [ask.sequence_id for ask in asks]
        jobs = [self._start(ask, active) for ask in asks]
        pending = [job for job in jobs if job is not None]
        while pending:
            for first in range(0, len(pending), self.session.caps.max_sequences):
                self._step(pending[first : first + self.session.caps.max_sequences])
            pending = [job for job in pending if not job.is_done]
        return [Draft.chain(job.drafted) if job is not None else Draft() for job in jobs]

    def learn(self, sequence_id: str, draft: Draft, likeliest: dict[int, int]) -> None:
        """Nothing: what was accepted shows in the tokens of the next ask."""

    def forget(self, sequence_id: str) -> None:
        """Free the cache blocks of a sequence."""
        track = self._tracks.pop(sequence_id, None)
        if track is not None:
            for block in track.blocks:
                self._blocks.release(block)

    def close(self) -> None:
        """Free all blocks and close the draft session."""
        for sequence_id in list(self._tracks):
            self.forget(sequence_id)
        self.session.close()

    def _start(self, ask: Ask, active: Sequence[str]) -> _Job | None:
        """What must run for an ask; None where the draft model cannot follow it."""
        caps, track = self.session.caps, self._tracks.pop(ask.sequence_id, None) or _Track()
        self._tracks[ask.sequence_id] = track  # at the end: used last
        track.keep_common(ask.tokens)
        limit = min(ask.limit, caps.ctx_len - len(ask.tokens) + 1)
        waiting = list(ask.tokens[len(track.tokens) :])
        # A padding token of the target's logits may be one that the draft has no row for.
        if limit < 1 or max(waiting) >= caps.vocab_size:
            return None
        if not self._grow(track, len(ask.tokens) + limit - 1, active):
            self.forget(ask.sequence_id)  # its blocks let the others go on
            return None
        return _Job(ask, track, waiting, limit)

    def _grow(self, track: _Track, num_tokens: int, active: Sequence[str]) -> bool:
        """Give a sequence blocks for this many tokens, taken from idle ones when none are free."""
        needed = -(-num_tokens // self.session.caps.block_len) - len(track.blocks)
        idle = [name for name in self._tracks if name not in active]
        while needed > self._blocks.num_free and idle:
            self.forget(idle.pop(0))
        if needed > self._blocks.num_free:
            return False
        track.blocks.extend(self._blocks.allocate() for _ in range(needed))
        return True

    def _step(self, jobs: Sequence[_Job]) -> None:
        """Run the next tokens of some sequences, and draft one for each that is caught up."""
        tokens: list[int] = []
        positions: list[int] = []
        spans: list[Span] = []
        due: list[_Job] = []
        rows: list[int] = []
        for job in jobs:
            chunk = job.waiting[: self.session.caps.max_step_tokens]
            first = len(job.track.tokens)
            spans.append(Span(len(tokens), len(tokens) + len(chunk), tuple(job.track.blocks)))
            tokens += chunk
            positions += range(first, first + len(chunk))
            job.track.tokens += chunk
            del job.waiting[: len(chunk)]
            if not job.waiting:
                due.append(job)
                rows.append(len(tokens) - 1)
        output = self.session.step(
            Batch(
                tokens=np.asarray(tokens, np.int64),
                positions=np.asarray(positions, np.int64),
                spans=tuple(spans),
                logit_rows=np.asarray(rows, np.int64),
            )
        )
        if due:
            self._extend(due, _fit_width(output.logits, self._num_logits))

    def _extend(self, jobs: Sequence[_Job], logits: np.ndarray) -> None:
        chosen = _choose(logits, [job.ask.row(job.drafted) for job in jobs])
        for job, token, row in zip(jobs, chosen, logits, strict=True):
            if token is None or not self._is_confident(row, token):
                job.is_done = True
                continue
            job.drafted.append(token)
            job.is_done = len(job.drafted) == job.limit or token >= self.session.caps.vocab_size
            job.waiting.append(token)

    def _is_confident(self, logits: np.ndarray, token: int) -> bool:
        if self._min_confidence == 0:
            return True
        peak = logits.max()
        near = logits[logits > peak - NEAR]
        total = np.exp(near - peak).sum()
        return bool(np.exp(logits[token] - peak) >= self._min_confidence * total)


@dataclass(slots=True)
class _Track:
    """What the draft's cache holds of a sequence."""

    tokens: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    num_sure: int = 0  # tokens at the beginning that are the sequence's own, not guesses

    def keep_common(self, tokens: Sequence[int]) -> None:
        """Drop guesses that did not come true, and the last token, whose logits are wanted."""
        common = min(self.num_sure, len(self.tokens))
        most = min(len(self.tokens), len(tokens) - 1)
        while common < most and self.tokens[common] == tokens[common]:
            common += 1
        del self.tokens[min(common, most) :]
        self.num_sure = len(self.tokens)


@dataclass(slots=True)
class _Job:
    """One ask on its way through the draft model."""

    ask: Ask
    track: _Track
    waiting: list[int]  # tokens to run next
    limit: int
    drafted: list[int] = field(default_factory=list)
    is_done: bool = False


def _choose(logits: np.ndarray, rows: Sequence[Row]) -> list[int | None]:
    """A token for each row; None where the draft model has none that may come."""
    try:
        return [choice.token for choice in sample(logits, rows)]
    except SampleError as error:
        kept = [index for index in range(len(rows)) if index not in error.by_row]
    chosen: list[int | None] = [None] * len(rows)
    for index, choice in zip(kept, sample(logits[kept], [rows[i] for i in kept]), strict=True):
        chosen[index] = choice.token
    return chosen


def _fit_width(logits: np.ndarray, width: int) -> np.ndarray:
    """Logits as wide as the target's: what it does not know is cut, what it alone knows is −inf."""
    missing = width - logits.shape[1]
    if missing <= 0:
        return logits[:, :width]
    return np.pad(logits, ((0, 0), (0, missing)), constant_values=-np.inf)


def _choose_num_blocks(session: Session, wanted: int | None) -> int:
    caps = session.caps
    each = -(-caps.ctx_len // caps.block_len)
    chosen = wanted or each * caps.max_sequences
    if caps.max_blocks is not None:
        chosen = min(chosen, caps.max_blocks)
    if chosen < each:
        raise ResourceError(
            f"{chosen} cache blocks of the draft model do not hold one context of its"
            f" {caps.ctx_len} tokens",
            f"reserve at least {each} blocks",
        )
    return chosen
