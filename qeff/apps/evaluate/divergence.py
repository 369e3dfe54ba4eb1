"""The numbers of evaluation, from logits alone: negative log-likelihood, KL divergence, top token.

All in float64, some rows at a time, so that memory does not grow with the vocabulary. Knows
nothing of where logits come from.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qeff.core.divergence import divergence, log_softmax

ROWS = 16  # rows that are worked on at once: a few megabytes for a large vocabulary


@dataclass(frozen=True, slots=True)
class Scores:
    """What one row of logits says, for each row."""

    nll: np.ndarray  # float64 [R]: nats that the true next token costs
    kl: np.ndarray | None  # float64 [R]: nats from the reference; None without one
    is_same_top: np.ndarray | None  # bool [R]: whether the likeliest token is the reference's


def score(
    many_logits: list[np.ndarray], targets: np.ndarray, *, has_reference: bool
) -> list[Scores]:
    """Scores of several models' logits for the same rows; the first may be the reference."""
    made = [_empty(len(targets), has_reference) for _ in many_logits]
    for start in range(0, len(targets), ROWS):
        part = slice(start, start + ROWS)
        reference: np.ndarray | None = None
        for one, logits in zip(made, many_logits, strict=True):
            found = log_softmax(logits[part])
            rows = np.arange(len(found))
            one.nll[part] = -found[rows, targets[part]]
            if has_reference:
                reference = found if reference is None else reference
                _compare(one, part, reference, found)
    return made


def _empty(count: int, has_reference: bool) -> Scores:
    if not has_reference:
        return Scores(np.empty(count), None, None)
    return Scores(np.empty(count), np.empty(count), np.empty(count, np.bool_))


def _compare(one: Scores, part: slice, reference: np.ndarray, found: np.ndarray) -> None:
    assert one.kl is not None and one.is_same_top is not None
    one.is_same_top[part] = reference.argmax(axis=-1) == found.argmax(axis=-1)
    if found is reference:
        one.kl[part] = 0.0
        return
    one.kl[part] = divergence(reference, found)
