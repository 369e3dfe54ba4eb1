"""Log-probabilities of tokens in the model's own distribution, and its likeliest tokens.

The log-softmax of logits as the model gave them, computed row by row. Knows nothing of sampling.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qeff.generate.request import Choice
from qeff.generate.sampling.filters import kth_largest


def score(logits: np.ndarray, tokens: Sequence[int], num_top: int = 0) -> list[Choice]:
    """How likely each row of logits [R, vocab] finds its token, with its likeliest tokens."""
    assert len(logits) == len(tokens), f"{len(logits)} rows of logits for {len(tokens)} tokens"
    logits = np.ascontiguousarray(logits, np.float32)
    return [
        scored(row, int(token), log_total(row), num_top)
        for row, token in zip(logits, tokens, strict=True)
    ]


def scored(logits: np.ndarray, token: int, total: float, num_top: int) -> Choice:
    """A token with its log-probability and those of the likeliest; ``total`` is log_total."""
    return Choice(token, float(logits[token]) - total, likeliest(logits, total, num_top))


def likeliest(logits: np.ndarray, total: float, count: int) -> tuple[tuple[int, float], ...]:
    """The likeliest tokens and their log-probabilities; ``total`` is log_total."""
    return tuple((best, float(logits[best]) - total) for best in largest(logits, count))


def log_total(logits: np.ndarray) -> float:
    """The logarithm of the sum of powers of [vocab]."""
    peak = logits.max()
    return float(peak) + float(np.log(np.exp(logits - peak).sum(dtype=np.float64)))


def largest(values: np.ndarray, k: int) -> list[int]:
    """The places of the k largest of [N], the largest first and equal ones in their order."""
    k = min(k, len(values))
    if k == 0:
        return []
    places = np.flatnonzero(values >= kth_largest(values, k))
    order = np.argsort(-values[places], kind="stable")[:k]
    return [int(place) for place in places[order]]
