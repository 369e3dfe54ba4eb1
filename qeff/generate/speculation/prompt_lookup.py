"""Guesses from the sequence's own text: where its last tokens stood before, the rest may follow.

Every n-gram that has a follower is in a dictionary, so a look costs the same however long the text
is. A draft copies what followed the longest n-gram found, and goes on from the same place as long
as it turns out right. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Sequence

from qeff.core.errors import OptionValueError
from qeff.generate.speculation.draft import Ask, Draft

# Tokens drafted for each token of agreement: a short agreement is often chance, and a long one
# grows with every draft that is right, so copying a text soon gets drafts of full length.
DRAFTED_FOR_EACH_MATCHED = 2


class PromptLookupProposer:
    """Chains copied from the prompt and the output of the same sequence."""

    makes_trees = False

    def __init__(self, *, max_ngram: int = 4, min_ngram: int = 2) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise OptionValueError(f"min_ngram {min_ngram} must be from 1 to max_ngram {max_ngram}")
        self._lengths = range(max_ngram, min_ngram - 1, -1)  # longest first
        self._histories: dict[str, _History] = {}

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """Copy what followed the last tokens of each sequence where they stood before."""
        return [self._draft(ask) for ask in asks]

    def learn(self, sequence_id: str, draft: Draft, likeliest: dict[int, int]) -> None:
        """Nothing: what a draft was worth shows in the tokens of the next ask."""

    def forget(self, sequence_id: str) -> None:
        """Drop the n-grams of a sequence."""
        self._histories.pop(sequence_id, None)

    def close(self) -> None:
        """Drop the n-grams of all sequences."""
        self._histories.clear()

    def _draft(self, ask: Ask) -> Draft:
        tokens, history = ask.tokens, self._histories.get(ask.sequence_id)
        if history is None or history.num_read > len(tokens):
            history = self._histories[ask.sequence_id] = _History(self._lengths)
        history.read(tokens)
        found = history.find(tokens, -(-ask.limit // DRAFTED_FOR_EACH_MATCHED))
        if found is None:
            return Draft()
        source, num_matched = found
        length = min(ask.limit, DRAFTED_FOR_EACH_MATCHED * num_matched)
        drafted = list(tokens[source : source + length])
        period = len(tokens) - source
        while len(drafted) < length:  # the earlier place runs into the end: the text repeats
            drafted.append(drafted[-period])
        return Draft.chain(drafted)


class _History:
    """The n-grams of one sequence, and the place that its last draft came from."""

    __slots__ = ("_followers", "_lengths", "_num_matched", "_source", "num_read")

    def __init__(self, lengths: range) -> None:
        self._lengths = lengths
        self._followers: dict[tuple[int, ...], int] = {}  # n-gram: where its last follower stands
        self.num_read = 0
        self._source: int | None = None  # what the token after the last one read was guessed from
        self._num_matched = 0

    def read(self, tokens: Sequence[int]) -> None:
        """Take in tokens that came since, and see whether the last source was right."""
        first, self.num_read = self.num_read, len(tokens)
        if self._source is not None:
            num_added = len(tokens) - first
            copied = tokens[self._source : self._source + num_added]
            if tokens[first:] == copied:
                self._source += num_added
                self._num_matched += num_added
            else:
                self._source = None
        # An n-gram gets in with its follower, so the sequence's end never finds itself.
        for follower in range(max(first, 1), len(tokens)):
            for length in self._lengths:
                if length <= follower:
                    self._followers[tuple(tokens[follower - length : follower])] = follower

    def find(self, tokens: Sequence[int], enough: int) -> tuple[int, int] | None:
        """Where the guess begins, and how many tokens before it agree (counted to ``enough``)."""
        if self._source is not None and self._num_matched >= self._lengths[0]:
            return self._source, self._num_matched
        for length in self._lengths:
            source = self._followers.get(tuple(tokens[-length:]))
            if source is not None and length <= len(tokens):
                while (
                    length < min(enough, source)
                    and tokens[source - 1 - length] == (tokens[-1 - length])
                ):
                    length += 1
                self._source, self._num_matched = source, length
                return source, length
        self._source = None
        return None
