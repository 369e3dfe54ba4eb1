"""Temperature and filters: which tokens of a row may be drawn, and with what weights.

Knows nothing of penalties, masks or random numbers.
"""

from __future__ import annotations

import numpy as np

from qeff.generate.params import SamplingParams
from qeff.generate.sampling import filters

_FLOAT32 = np.finfo(np.float32)


class Candidates:
    """The tokens that may still come, and their scores relative to the largest of the row.

    ``tokens`` None stands for the whole vocabulary.
    """

    def __init__(self, tokens: np.ndarray | None, scores: np.ndarray) -> None:
        self.tokens = tokens
        self.scores = scores
        self._weights: np.ndarray | None = None

    @property
    def weights(self) -> np.ndarray:
        """The powers of the scores: probabilities of any sum."""
        if self._weights is None:
            self._weights = np.exp(self.scores)
        return self._weights

    def keep(self, places: np.ndarray) -> None:
        """Drop all but these."""
        self.tokens = places if self.tokens is None else self.tokens[places]
        self.scores = self.scores[places]
        self._weights = None if self._weights is None else self._weights[places]

    def token(self, place: int) -> int:
        return place if self.tokens is None else int(self.tokens[place])


def warp(logits: np.ndarray, params: SamplingParams) -> Candidates:
    """Temperature, top-k, typical, top-p and min-p on [vocab], whose largest is finite."""
    tokens: np.ndarray | None = None
    if 0 < params.top_k < len(logits):  # before the temperature, which keeps the order
        tokens = filters.keep_top_k(logits, params.top_k)
        logits = logits[tokens]
    temperature = min(max(params.temperature, float(_FLOAT32.tiny)), float(_FLOAT32.max))
    scores = logits - logits.max()
    with np.errstate(over="ignore"):  # a tiny temperature leaves the largest alone
        scores *= np.float32(1 / temperature)
    found = Candidates(tokens, scores)
    if params.typical_p < 1:
        found.keep(filters.keep_typical(found.scores, found.weights, params.typical_p))
    if params.top_p < 1:
        found.keep(filters.keep_top_p(found.scores, found.weights, params.top_p))
    if params.min_p > 0:
        found.keep(filters.keep_min_p(found.scores, params.min_p))
    return found
