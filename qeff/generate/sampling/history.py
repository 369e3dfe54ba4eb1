"""What the choices of one request's tokens share: settings as arrays, and counts of its tokens.

One is kept for each output of a request and told every token that is made, so that a step does no
work over the whole history. Knows nothing of logits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from qeff.generate.params import SamplingParams


class History:
    """Counts of prompt and output for the penalties; bias and bad words ready for use.

    ``push`` each token as it is made. Guessed tokens are not pushed: a row's ``output`` has them.
    """

    def __init__(
        self, params: SamplingParams, prompt: Sequence[int] = (), output: Sequence[int] = ()
    ) -> None:
        self.num_output = len(output)
        self.biased = np.array([token for token, _ in params.logit_bias], np.int64)
        self.bias = np.array([bias for _, bias in params.logit_bias], np.float32)
        self.banned = tuple(words[0] for words in params.bad_token_ids if len(words) == 1)
        # Longer ones by the token before their last: few of them can be complete at a position.
        self.banned_after: dict[int, list[tuple[int, ...]]] = {}
        for words in params.bad_token_ids:
            if len(words) > 1:
                self.banned_after.setdefault(words[-2], []).append(words)
        self._is_counting = params.has_penalties
        self._places: dict[int, int] = {}
        self._tokens = np.zeros(64, np.int64)
        self._counts = np.zeros(64, np.int64)
        if self._is_counting:
            for token in prompt:
                self._place(token)
            for token in output:
                self._count(token)

    def push(self, token: int) -> None:
        """Add a token that was made."""
        self.num_output += 1
        if self._is_counting:
            self._count(token)

    def counts(self, drafted: Sequence[int] = ()) -> tuple[np.ndarray, np.ndarray]:
        """Each token of prompt, output and ``drafted`` once, and how often the last two have it."""
        num = len(self._places)
        tokens, counts = self._tokens[:num], self._counts[:num]
        if not drafted:
            return tokens, counts
        counts = counts.copy()
        others: Counter[int] = Counter()
        for token in drafted:
            place = self._places.get(token)
            if place is None:
                others[token] += 1
            else:
                counts[place] += 1
        return (
            np.concatenate([tokens, np.fromiter(others.keys(), np.int64)]),
            np.concatenate([counts, np.fromiter(others.values(), np.int64)]),
        )

    def _count(self, token: int) -> None:
        place = self._place(token)  # before the counts are looked at: it may put them elsewhere
        self._counts[place] += 1

    def _place(self, token: int) -> int:
        """Where a token is counted; one that has not come before gets a place."""
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.zeros_like(self._tokens)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._tokens[place] = token
        return place
