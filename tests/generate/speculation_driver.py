"""The smallest engine that speculates: propose, walk the tree, learn. No session, no schedule.

Models are functions from a token history to logits, so a branch of a draft is simply a history.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from mock_session import answer

from qeff.generate.request import SamplingParams
from qeff.generate.sampling import Row, sample
from qeff.generate.speculation.draft import NO_PARENT, Draft

VOCAB = 64


@lru_cache(maxsize=100_000)
def hashed(history: tuple[int, ...]) -> np.ndarray:
    """Every token depends on all before it: nobody can guess it."""
    return answer(list(history), VOCAB)


def repetitive(history: tuple[int, ...]) -> np.ndarray:
    """A token depends on the two before it, of few: the text soon runs in circles."""
    return hashed(tuple(token % 8 for token in history[-2:]))


def choose(logits: np.ndarray, row: Row) -> int:
    return sample(logits[None], [row])[0].token


@dataclass
class Sequence:
    sequence_id: str
    prompt: list[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    limit: int = 8

    def __post_init__(self):
        self.tokens = list(self.prompt)

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.prompt) :]

    def row(self, drafted) -> Row:
        return Row(self.params, self.seed, self.prompt, [*self.output, *drafted])


def plain(model, sequence: Sequence, count: int) -> list[int]:
    """What decoding one token after the other gives."""
    tokens: list[int] = []
    for _ in range(count):
        logits = model((*sequence.prompt, *tokens))
        row = Row(sequence.params, sequence.seed, sequence.prompt, tokens)
        tokens = [*tokens, choose(logits, row)]
    return tokens


def branch(draft: Draft, node: int) -> list[int]:
    """The tokens of a draft on the way to a node, the node's own last."""
    tokens = []
    while node != NO_PARENT:
        tokens.append(draft.tokens[node])
        node = draft.parents[node]
    return tokens[::-1]


def check_draft(draft: Draft, limit: int) -> None:
    assert len(draft) <= limit
    assert len(draft.parents) == len(draft)
    assert all(NO_PARENT <= parent < node for node, parent in enumerate(draft.parents))
    assert all(0 <= node < len(draft) for node in draft.watched)
    assert len(set(zip(draft.parents, draft.tokens, strict=True))) == len(draft), "equal children"


def verify(model, sequence: Sequence, draft: Draft) -> list[int]:
    """Add the tokens that plain decoding would add, as far as the draft goes; the nodes kept."""
    path: list[int] = []
    known = tuple(sequence.tokens)
    node = NO_PARENT
    while True:
        drafted = branch(draft, node)
        token = choose(model((*known, *drafted)), sequence.row([]))
        sequence.tokens.append(token)
        children = [
            child
            for child, parent in enumerate(draft.parents)
            if parent == node and draft.tokens[child] == token
        ]
        if not children:
            return path
        node = children[0]
        path.append(node)


@dataclass
class Report:
    num_steps: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    longest: int = 0


def drive(model, proposer, sequences: list[Sequence], count: int) -> Report:
    """Run sequences until each has this many tokens; they may have some more, all of them right."""
    report = Report()
    going = list(sequences)
    while going:
        drafts = proposer.propose(going)
        assert len(drafts) == len(going)
        report.num_steps += 1
        for sequence, draft in zip(going, drafts, strict=True):
            check_draft(draft, sequence.limit)
            known = tuple(sequence.tokens)
            path = verify(model, sequence, draft)
            likeliest = {
                node: int(np.argmax(model((*known, *branch(draft, node)))))
                for node in draft.watched
            }
            proposer.learn(sequence.sequence_id, draft, likeliest)
            report.num_drafted += draft.depth
            report.num_accepted += len(path)
            report.longest = max(report.longest, len(path) + 1)
        for sequence in going:
            if len(sequence.output) >= count:
                proposer.forget(sequence.sequence_id)
        going = [sequence for sequence in going if len(sequence.output) < count]
    return report
