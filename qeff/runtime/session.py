"""The session: an opened container on a device. It runs steps; it knows no text and no schedule.

A step takes tokens of any number of sequences, flat, and gives logits for the rows asked for.
Cache memory is cut into numbered blocks of ``block_len`` tokens that the caller hands out; a
session that keeps one contiguous slot per sequence says ``block_len = ctx_len``, and the same
caller drives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

# How the token of a row is chosen; the filters in this order. The random number is the first of
# numpy's Philox(key, counter=index). A negative temperature wants no token but the logits.
CHOICE = np.dtype(
    [
        ("temperature", np.float32),  # 0: the largest logit, the first of equal ones
        ("top_p", np.float32),  # 1: off
        ("min_p", np.float32),  # 0: off
        ("top_k", np.int32),  # 0: off
        ("key", np.uint64, 2),
        ("index", np.uint64),
    ]
)
NO_CHOICE = (-1.0, 1.0, 0.0, 0, (0, 0), 0)
GREEDY = (0.0, 1.0, 0.0, 0, (0, 0), 0)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a session can take in one step, and how its cache is cut."""

    vocab_size: int
    ctx_len: int
    block_len: int
    max_sequences: int  # sequences in one step
    max_step_tokens: int  # tokens of one sequence in one step
    max_blocks: int | None = None  # None: as many as memory holds
    supports_trees: bool = False  # Batch.parents
    quick_tokens: int | None = None  # what a step takes in without keeping its decodes waiting
    window: int | None = None  # tokens that the widest layer looks back; None: all of them
    chooses: bool = False  # Batch.choices
    num_heads: int = 0  # StepOutput.guesses
    overlaps: bool = False  # Overlapping: a step may be begun before the one before has ended
    prepares: bool = False  # Preparing: steps of a size that was not seen before take longer


class Span(NamedTuple):  # made for every sequence of every step, and quick to make
    """One sequence's part of a step: its tokens lie at start..stop, its cache in ``blocks``."""

    start: int
    stop: int
    blocks: tuple[int, ...]
    adapter: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """Everything one step needs. Spans cover ``tokens`` without gap or overlap, in order."""

    tokens: np.ndarray  # int64 [T]
    positions: np.ndarray  # int64 [T], rising by one within a span; in a tree, from the parent
    spans: tuple[Span, ...]
    logit_rows: np.ndarray  # int64 [R], indices into tokens
    parents: np.ndarray | None = (
        None  # int64 [T]: index of the token's parent in this step, −1 for none
    )
    choices: np.ndarray | None = None  # CHOICE [R]: how the session chooses the rows' tokens


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What there is of ``Batch.logit_rows``, in that order."""

    logits: np.ndarray  # float32 [·, vocab]: of every row, or of those without a choice
    # int64 [R], where there were choices: −1 for a row without one, and where no logit is finite
    tokens: np.ndarray | None = None
    # int64 [R, heads], where the model has heads that guess: the likeliest tokens after the next
    guesses: np.ndarray | None = None


def split_heads(logits: np.ndarray, caps: Capabilities) -> StepOutput:
    """What a step gives whose rows hold the model's logits and then those of its heads."""
    if not caps.num_heads:
        return StepOutput(logits)
    rows = logits.reshape(len(logits), 1 + caps.num_heads, caps.vocab_size)
    return StepOutput(rows[:, 0], guesses=rows[:, 1:].argmax(-1))


def count_heads(width: int, vocab_size: int) -> int | None:
    """How many heads guess beside the model's own, by the width of a row; None: it is no row."""
    return width // vocab_size - 1 if width and width % vocab_size == 0 else None


class Session(Protocol):
    """Five methods; see the module's text."""

    @property
    def caps(self) -> Capabilities: ...

    def reserve(self, num_blocks: int) -> None:
        """Make room for this many cache blocks; what they held is lost."""

    def step(self, batch: Batch) -> StepOutput:
        """Run all tokens, write their keys and values, return the rows asked for."""

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (from, to) each, in order."""

    def copy_rows(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy what the cache holds of single tokens, (from, to) each, in order.

        Row ``r`` of block ``b`` has the number ``b * block_len + r``. Token ``i`` of a span is
        written to row ``first + i`` of its sequence, ``first`` being the position of its first
        token: in a tree that is not its position, and the branch that is kept has to be moved.
        """

    def close(self) -> None:
        """Give memory and threads back; the session cannot be used again."""


class Begun(Protocol):
    """A step on its way."""

    def result(self) -> StepOutput:
        """Wait for it; to be called once."""


class Overlapping(Session, Protocol):
    """A session with ``caps.overlaps``: the host plans a step while the device runs the last."""

    def begin(self, batch: Batch) -> Begun:
        """Start a step and return at once; steps run in the order they are begun in.

        A token of −1 − i stands for the one that the step begun before chooses for its row i,
        which the host need not know yet. Where that row chooses none, the token is any.
        """


class Preparing(Session, Protocol):
    """A session with ``caps.prepares``."""

    def prepare(self) -> None:
        """Make everything ready that steps may need, so that none takes longer than others.

        To be called between ``reserve`` and the first step; the cache stays as it is.
        """
