"""Drafts for the sequences of an engine: asks a proposer, as far as the governor finds it worth it.

Knows nothing of how drafts are made, run or verified.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qeff.core.errors import OptionValueError
from qeff.generate.sampling import Row
from qeff.generate.speculation.config import SpeculationConfig, make_governor, make_proposer
from qeff.generate.speculation.draft import Draft, Proposer
from qeff.generate.speculation.draft_model import Vocabulary
from qeff.generate.speculation.governor import Governor, SpeculationStats
from qeff.generate.task import Task
from qeff.runtime.session import Capabilities, Session


@dataclass(frozen=True, slots=True)
class _TaskAsk:
    """A task as a proposer sees it."""

    task: Task
    limit: int

    @property
    def sequence_id(self) -> str:
        return self.task.sequence.id

    @property
    def tokens(self) -> Sequence[int]:
        return self.task.sequence.tokens

    def row(self, drafted: Sequence[int]) -> Row:
        return self.task.row(drafted)


class Drafting:
    """A proposer and the governor that says when it is asked."""

    def __init__(self, proposer: Proposer, governor: Governor, caps: Capabilities) -> None:
        if proposer.makes_trees and not caps.supports_trees:
            raise OptionValueError(
                "this target runs no trees, which lookahead decoding needs",
                "use prompt lookup or a draft model, or compile for the cpu target",
            )
        self.proposer = proposer
        self.governor = governor

    @classmethod
    def start(
        cls,
        config: SpeculationConfig,
        caps: Capabilities,
        *,
        draft: Session | None = None,
        num_tokens: tuple[int | None, int | None] = (None, None),
    ) -> Drafting:
        """Drafts as a config asks for them, for a session of these capabilities.

        ``draft`` is the opened session of a draft model; ``num_tokens`` how many the tokenizers of
        the target and of the draft have, where there are tokenizers.
        """
        own = None if draft is None else Vocabulary(draft.caps.vocab_size, num_tokens[1])
        target = Vocabulary(caps.vocab_size, num_tokens[0])
        proposer = make_proposer(config, session=draft, target=target, draft=own)
        return cls(proposer, make_governor(config), caps)

    def propose(self, tasks: Sequence[Task], num_other_tokens: int) -> dict[str, Draft]:
        """Drafts by sequence, for those tasks where one is expected to pay."""
        asks = []
        for task in tasks:
            others = num_other_tokens + len(tasks) - 1
            limit = self.governor.limit(task.sequence.id, others)
            limit = min(limit, task.num_tokens_left - 1)
            if limit > 0:
                asks.append(_TaskAsk(task, limit))
        if not asks:
            return {}
        started_at = time.perf_counter()
        drafts = self.proposer.propose(asks)
        self.governor.note_proposal(time.perf_counter() - started_at, len(asks))
        return {
            ask.sequence_id: ask.task.fit(draft)
            for ask, draft in zip(asks, drafts, strict=True)
            if len(draft)
        }

    def note_step(self, num_tokens: int, seconds: float) -> None:
        """A step was run; its time teaches what tokens cost."""
        self.governor.note_step(num_tokens, seconds)

    def note_draft(
        self, task: Task, draft: Draft, path: Sequence[int], likeliest: Mapping[int, int]
    ) -> None:
        """A draft was verified: which of its tokens were right."""
        task.num_drafted += len(draft)
        task.num_accepted += len(path)
        self.governor.note_draft(task.sequence.id, draft.depth, len(path), len(draft))
        self.proposer.learn(task.sequence.id, draft, dict(likeliest))

    def forget(self, task: Task) -> None:
        """A task is done."""
        self.proposer.forget(task.sequence.id)
        self.governor.forget(task.sequence.id)

    def report(self) -> SpeculationStats:
        """What drafts gave so far."""
        return self.governor.report()

    def close(self) -> None:
        """Give back what the proposer holds."""
        self.proposer.close()
