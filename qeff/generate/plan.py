"""A step as the scheduler plans it: whose tokens run, and where in the answer their logits stand.

Turns entries into the flat arrays of a batch. Knows nothing of how entries are chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from qeff.generate.sequence import SequenceState
from qeff.generate.speculation.draft import NO_DRAFT, NO_PARENT, Draft
from qeff.runtime.session import CHOICE, GREEDY, NO_CHOICE, Batch, Span


@dataclass(slots=True, eq=False)
class Entry:
    """One sequence's part of a step: ``count`` of its tokens, then a draft of what follows."""

    sequence: SequenceState
    count: int
    draft: Draft = NO_DRAFT
    # Its rows, prompt tokens that are wanted and then the rest: where the session chooses its
    # tokens, among the tokens of the step; else among the logits.
    first_row: int = 0
    is_chosen: bool = False
    num_prompt_rows: int = 0
    is_due: bool = False  # whether its tokens reach their end, so that a new one is due

    @property
    def num_tokens(self) -> int:
        return self.count + len(self.draft)

    @property
    def has_choice_where_watched(self) -> bool:
        """Whether what follows a watched token is chosen as the sequence's tokens are."""
        choosing = self.sequence.choosing
        return not self.is_chosen or choosing is None or choosing[0] == 0

    def row(self, node: int = NO_PARENT) -> int:
        """Where what follows a token of the draft stands, or what follows the last known token."""
        assert self.is_due, "a sequence that is not due has no row"
        return self.first_row + self.num_prompt_rows + 1 + node


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: blocks to copy before it, its batch, and its entries."""

    batch: Batch
    entries: tuple[Entry, ...]
    copies: tuple[tuple[int, int], ...]
    is_steady: bool = False  # one token for each of the sequences that had one in the step before


def build_plan(
    entries: Sequence[Entry], copies: Sequence[tuple[int, int]], *, chooses: bool = False
) -> Plan:
    """Lay the tokens of all entries out in one batch, for a session that may choose tokens."""
    tokens: list[int] = []
    positions: list[int] = []
    spans: list[Span] = []
    rows: list[int] = []
    choices: list[tuple[object, ...]] = []
    num_logits = 0
    has_tree = any(entry.draft.tokens and not entry.draft.is_chain for entry in entries)
    parents: list[int] | None = [] if has_tree else None
    for entry in entries:
        sequence, start, num_rows = entry.sequence, len(tokens), len(rows)
        first, last = sequence.num_computed, sequence.num_computed + entry.count
        if entry.count == 1:
            tokens.append(sequence.tokens[first])
            positions.append(first)
        else:
            tokens.extend(sequence.tokens[first:last])
            positions.extend(range(first, last))
        entry.is_due = last == len(sequence.tokens)
        entry.is_chosen = chooses and sequence.choosing is not None
        entry.first_row = len(rows) if entry.is_chosen else num_logits
        if sequence.scores_prompt and first < sequence.num_prompt - 1:
            stop = min(last, sequence.num_prompt - 1)  # the last token's logits are the output's
            entry.num_prompt_rows = stop - first
            rows.extend(range(start, start + stop - first))
        if entry.is_due:
            rows.append(len(tokens) - 1)
        if parents is not None:
            parents.extend((NO_PARENT, *range(start, len(tokens) - 1)))
        if entry.draft.tokens:
            _add_draft(entry.draft, tokens, positions, parents)
            rows.extend(range(len(tokens) - len(entry.draft), len(tokens)))
        spans.append(Span(start, len(tokens), table_of(sequence)))
        if entry.is_chosen:
            choices.extend(_choices(entry, positions[len(tokens) - len(entry.draft) - 1 :]))
        else:
            choices.extend([NO_CHOICE] * (len(rows) - len(choices)))
            num_logits += len(rows) - num_rows
    batch = Batch(
        tokens=np.asarray(tokens, np.int64),
        positions=np.asarray(positions, np.int64),
        spans=tuple(spans),
        logit_rows=np.asarray(rows, np.int64),
        parents=None if parents is None else np.asarray(parents, np.int64),
        choices=np.array(choices, CHOICE) if num_logits < len(rows) else None,
    )
    return Plan(batch, tuple(entries), tuple(copies))


def _choices(entry: Entry, positions: Sequence[int]) -> Iterator[tuple[object, ...]]:
    """How the tokens after these positions are chosen, the last known one's and the draft's."""
    if not entry.is_due:
        return
    assert entry.sequence.choosing is not None, "an entry whose logits are wanted"
    first = entry.sequence.num_prompt - 1  # what follows it is the output's first token
    for node, position in enumerate(positions, NO_PARENT):
        if node in entry.draft.watched:
            yield GREEDY
        else:
            yield (*entry.sequence.choosing, position - first)


def _add_draft(
    draft: Draft, tokens: list[int], positions: list[int], parents: list[int] | None
) -> None:
    first = len(tokens)
    for parent in draft.parents:
        at = first + parent if parent != NO_PARENT else first - 1
        positions.append(positions[at] + 1)
        if parents is not None:
            parents.append(at)
    tokens.extend(draft.tokens)


def table_of(sequence: SequenceState) -> tuple[int, ...]:
    """The block table; a dropped block is never read, and any number will do for it."""
    num_dropped = sequence.num_dropped
    if not num_dropped:
        return tuple(sequence.blocks)
    live = sequence.blocks[num_dropped:]
    return (live[0],) * num_dropped + tuple(live)
