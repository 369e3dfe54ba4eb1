"""Guesses of the model's own heads: each step also says what may follow the token after the next.

They come with the row that a sequence's last token was chosen from, so they are good for one step
and cost no run of their own. Knows nothing of sessions and of how heads are made.
"""

from __future__ import annotations

from collections.abc import Sequence

from qeff.generate.speculation.draft import NO_DRAFT, Ask, Draft


class HeadsProposer:
    """Chains of what the heads found likeliest."""

    makes_trees = False

    def __init__(self) -> None:
        self._guesses: dict[str, tuple[int, list[int]]] = {}  # with the tokens that stand before

    def note_guesses(self, sequence_id: str, num_tokens: int, guesses: list[int]) -> None:
        """What the heads guess after the first ``num_tokens`` of a sequence."""
        self._guesses[sequence_id] = num_tokens, guesses

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """The guesses that were made for just this place; nothing where there are none."""
        return [self._draft(ask) for ask in asks]

    def learn(self, sequence_id: str, draft: Draft, likeliest: dict[int, int]) -> None:
        """Nothing: the step has given its own guesses."""

    def forget(self, sequence_id: str) -> None:
        """Drop the guesses of a sequence."""
        self._guesses.pop(sequence_id, None)

    def close(self) -> None:
        """Drop all guesses."""
        self._guesses.clear()

    def _draft(self, ask: Ask) -> Draft:
        num_tokens, guesses = self._guesses.get(ask.sequence_id, (0, []))
        if num_tokens != len(ask.tokens):
            return NO_DRAFT
        return Draft.chain(guesses[: ask.limit])
