"""What a proposer is asked and what it gives: guesses of the tokens to come, as a tree.

A draft's first tokens follow the last token that a sequence has; every other one follows the token
that ``parents`` names. The engine runs them all in one step and keeps those that it would have
chosen itself, so a draft can be wrong but can never change a result. Knows nothing of how guesses
are made, of sessions or of schedules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from qeff.generate.sampling import Row

NO_PARENT = -1  # follows the sequence's last token


@dataclass(frozen=True, slots=True)
class Draft:
    """Guessed tokens in the order they run: a parent stands before its children."""

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()  # index into tokens, or NO_PARENT
    watched: frozenset[int] = frozenset()  # tokens whose likeliest successor ``learn`` wants
    is_forced: bool = False  # a constraint leaves no other tokens: no guess, nobody learns from it

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        """Whether every token follows the one before it."""
        return all(parent == index - 1 for index, parent in enumerate(self.parents))

    @property
    def depth(self) -> int:
        """Tokens of the longest branch."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == NO_PARENT else depths[parent] + 1)
        return max(depths, default=0)

    def cut(self, num_tokens: int) -> Draft:
        """The first tokens of the draft, which are a draft too."""
        if num_tokens >= len(self):
            return self
        watched = frozenset(index for index in self.watched if index < num_tokens)
        return Draft(self.tokens[:num_tokens], self.parents[:num_tokens], watched, self.is_forced)

    @classmethod
    def chain(cls, tokens: Sequence[int], *, is_forced: bool = False) -> Draft:
        """A draft of one branch."""
        return cls(tuple(tokens), tuple(range(-1, len(tokens) - 1)), is_forced=is_forced)


NO_DRAFT = Draft()


class Ask(Protocol):
    """A sequence that is due a token, as a proposer sees it."""

    @property
    def sequence_id(self) -> str: ...

    @property
    def tokens(self) -> Sequence[int]:
        """All tokens so far, the prompt first; the last one has not been run yet."""

    @property
    def limit(self) -> int:
        """Most tokens that a draft may have; at least 1."""

    def row(self, drafted: Sequence[int]) -> Row:
        """What the choice of the token after ``tokens`` and ``drafted`` depends on."""


class Proposer(Protocol):
    """One for an engine; it may keep something for each sequence until it is told to forget."""

    @property
    def makes_trees(self) -> bool:
        """Whether a draft may be other than a chain, which not every session runs."""

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """A draft for each ask, in their order; an empty one where there is no good guess."""

    def learn(self, sequence_id: str, draft: Draft, likeliest: dict[int, int]) -> None:
        """After the step of a draft: the likeliest successor of each watched token."""

    def forget(self, sequence_id: str) -> None:
        """The sequence is done, or starts over."""

    def close(self) -> None:
        """Give back what the proposer holds."""
