"""Drafts for the sequences of an engine: asks a proposer, as far as the governor finds it worth it.

Where no draft is worth it for anybody it rests for some steps, which then cost what they cost
without it. Knows nothing of how drafts are made, run or verified.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from qeff.core.errors import OptionValueError
from qeff.generate.sampling import Row
from qeff.generate.speculation.config import SpeculationConfig, make_governor, make_proposer
from qeff.generate.speculation.draft import Draft, Proposer
from qeff.generate.speculation.draft_model import Vocabulary
from qeff.generate.speculation.governor import Governor, SpeculationStats
from qeff.generate.speculation.heads import HeadsProposer
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
        self._heads = proposer if isinstance(proposer, HeadsProposer) else None
        self._rest_ids: list[str] = []  # whose rest it is,
        self._rest_tokens = 0  # how many tokens its steps have,
        self._num_left = 0  # how many of them are to come,
        self._num_rested = 0  # and how many were there that the governor does not know of

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
        if config.kind == "heads":
            config = _fit_heads(config, caps)
        own = None if draft is None else Vocabulary(draft.caps.vocab_size, num_tokens[1])
        target = Vocabulary(caps.vocab_size, num_tokens[0])
        proposer = make_proposer(config, session=draft, target=target, draft=own)
        return cls(proposer, make_governor(config), caps)

    def rests(self) -> bool:
        """Whether the next step is one of a rest: nothing is asked before it nor noted after it.

        To be asked once a step, and only where the step has the sequences of the one before.
        """
        if not self._num_left:
            return False
        self._num_left -= 1
        self._num_rested += 1
        return True

    def propose(self, tasks: Sequence[Task], num_other_tokens: int) -> dict[str, Draft]:
        """Drafts by sequence, for those tasks where one is expected to pay."""
        self._end_rest()
        asks = []
        for task in tasks:
            others = num_other_tokens + len(tasks) - 1
            limit = self.governor.limit(task.sequence.id, others)
            limit = min(limit, task.num_tokens_left - 1)
            if limit > 0:
                asks.append(_TaskAsk(task, limit))
        if not asks:
            self._rest_ids = [task.sequence.id for task in tasks]
            self._rest_tokens = num_other_tokens + len(tasks)
            self._num_left = self.governor.rest(self._rest_ids)
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

    def note_guesses(self, task: Task, guesses: np.ndarray) -> None:
        """What the model's heads guess after the last token of a task."""
        if self._heads is not None:
            sequence = task.sequence
            self._heads.note_guesses(sequence.id, len(sequence.tokens), guesses.tolist())

    def forget(self, task: Task) -> None:
        """A task is done."""
        self.proposer.forget(task.sequence.id)
        self.governor.forget(task.sequence.id)

    def report(self) -> SpeculationStats:
        """What drafts gave so far."""
        self._note_rest()
        return self.governor.report()

    def close(self) -> None:
        """Give back what the proposer holds."""
        self.proposer.close()

    def _end_rest(self) -> None:
        self._note_rest()
        self._num_left = 0

    def _note_rest(self) -> None:
        if self._num_rested:
            self.governor.note_rest(self._rest_ids, self._num_rested, self._rest_tokens)
            self._num_rested = 0


def _fit_heads(config: SpeculationConfig, caps: Capabilities) -> SpeculationConfig:
    if not caps.num_heads:
        raise OptionValueError(
            "this container has no heads that guess ahead",
            "compile a model that brings them with --speculative-model-type turbo, or use"
            " prompt lookup",
        )
    return replace(config, num_tokens=min(config.max_tokens, caps.num_heads))
