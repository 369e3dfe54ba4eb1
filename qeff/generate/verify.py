"""From the logits of a step to the tokens of its sequences: the one verifier of all drafts.

Each sequence starts at its last known token. A token is chosen there as it would be without any
draft; where the draft holds that token as the next one, its logits are there too and the choice
goes on from it. So a draft saves steps and changes nothing: neither a greedy nor a sampled token
depends on it. Knows nothing of where drafts come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from qeff.core.errors import RequestError
from qeff.generate.plan import Entry
from qeff.generate.request import Choice
from qeff.generate.sampling import Row, SampleError, not_finite, sample
from qeff.generate.speculation.draft import NO_PARENT
from qeff.generate.task import Task
from qeff.runtime.session import StepOutput


@dataclass(slots=True, eq=False)
class Walk:
    """The way of one sequence through its draft; ``path`` holds the draft's tokens on it."""

    entry: Entry
    task: Task
    node: int = NO_PARENT
    path: list[int] = field(default_factory=list)

    def follow(self, token: int) -> bool:
        """Go to the draft's token that stands for this choice; False where the way ends."""
        draft = self.entry.draft
        for index in range(self.node + 1, len(draft)):
            if draft.parents[index] == self.node and draft.tokens[index] == token:
                if index in draft.watched and not self.entry.has_choice_where_watched:
                    return False
                self.node = index
                self.path.append(index)
                return True
        return False


Take = Callable[[Walk, Choice], bool]


def verify(walks: Iterable[Walk], output: StepOutput, take: Take) -> dict[Walk, RequestError]:
    """Choose tokens until every walk has left its draft; those that no token could be chosen for.

    ``take`` is given each choice and says whether its sequence goes on.
    """
    if output.tokens is None:
        return _verify_logits(list(walks), output.logits, take)
    chosen: list[Walk] = []
    others: list[Walk] = []
    for walk in walks:
        (chosen if walk.entry.is_chosen else others).append(walk)
    failed = _verify_tokens(chosen, output.tokens.tolist(), take)
    return failed | _verify_logits(others, output.logits, take)


def _verify_tokens(
    walks: Iterable[Walk], tokens: list[int], take: Take
) -> dict[Walk, RequestError]:
    """Where the session has chosen a token for every row."""
    failed: dict[Walk, RequestError] = {}
    for walk in walks:
        token = tokens[walk.entry.row()]
        while token >= 0 and take(walk, Choice(token)) and walk.follow(token):
            token = tokens[walk.entry.row(walk.node)]
        if token < 0:
            failed[walk] = not_finite()
    return failed


def _verify_logits(going: list[Walk], logits: np.ndarray, take: Take) -> dict[Walk, RequestError]:
    """The choices of all sequences at an equal depth are made together."""
    failed: dict[Walk, RequestError] = {}
    while going:
        rows: list[Row] = []
        for walk in list(going):
            try:
                rows.append(walk.task.row())
            except RequestError as error:  # its constraint cannot be followed any further
                failed[walk] = error
                going.remove(walk)
        places = [walk.entry.row(walk.node) for walk in going]
        is_whole = len(places) == len(logits)  # the usual step: every row once, in order
        try:
            choices = sample(logits if is_whole else logits[places], rows)
        except SampleError as error:
            failed.update({going[index]: reason for index, reason in error.by_row.items()})
            going = [walk for walk in going if walk not in failed]
            continue
        going = [
            walk
            for walk, choice in zip(going, choices, strict=True)
            if take(walk, choice) and walk.follow(choice.token)
        ]
    return failed
