"""The choice of one token for each row of logits.

Greedy rows without anything special are one argmax over all of them. Every other row is worked on
by itself: a row of a large vocabulary fills the cache, so several at once are not quicker, and a
row's numbers cannot depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite

import numpy as np

from qeff.core.errors import RequestError
from qeff.generate.request import Choice
from qeff.generate.sampling.adjust import adjust
from qeff.generate.sampling.draw import draw, uniform
from qeff.generate.sampling.logprobs import log_total, scored
from qeff.generate.sampling.row import Row
from qeff.generate.sampling.warp import warp


class SampleError(RequestError):
    """Some rows have no token; ``by_row`` says which and why, so that the others can go on."""

    def __init__(self, by_row: Mapping[int, RequestError]) -> None:
        first = next(iter(by_row.values()))
        super().__init__(first.what, first.hint)
        self.by_row = dict(by_row)


def sample(logits: np.ndarray, rows: Sequence[Row]) -> list[Choice]:
    """Choose a token for each row of logits [R, vocab]; the logits are not changed."""
    assert len(logits) == len(rows), f"{len(logits)} rows of logits for {len(rows)} rows"
    if not rows:
        return []
    logits = np.ascontiguousarray(logits, np.float32)
    choices: dict[int, Choice] = {}
    errors: dict[int, RequestError] = {}
    plain, others = _sorted_out(rows)
    for index, (token, peak) in zip(plain, _likeliest(logits, plain), strict=True):
        if isfinite(peak):
            choices[index] = Choice(token)
        else:
            errors[index] = not_finite()
    for index in others:
        try:
            choices[index] = _choose(logits[index], rows[index])
        except RequestError as error:
            errors[index] = error
    if errors:
        raise SampleError(dict(sorted(errors.items())))
    return [choices[index] for index in range(len(rows))]


def _sorted_out(rows: Sequence[Row]) -> tuple[list[int], list[int]]:
    """The rows whose largest logit is their token, and the others."""
    plain: list[int] = []
    others: list[int] = []
    for index, row in enumerate(rows):
        is_free = not row.forbidden and row.allowed is None
        (plain if is_free and row.params.is_plain else others).append(index)
    return plain, others


def _likeliest(logits: np.ndarray, places: list[int]) -> Iterable[tuple[int, float]]:
    """The likeliest token of several rows, and its logit."""
    picked = logits if len(places) == len(logits) else logits[places]
    best = picked.argmax(axis=1)
    return zip(best.tolist(), picked[np.arange(len(best)), best].tolist(), strict=True)


def _choose(logits: np.ndarray, row: Row) -> Choice:
    token = _token(logits, row)
    if not row.params.needs_logprobs:
        return Choice(token)
    return scored(logits, token, log_total(logits), row.params.logprobs or 0)


def _token(logits: np.ndarray, row: Row) -> int:
    scores = adjust(logits, row) if row.is_adjusted else logits
    best = int(scores.argmax())
    if not np.isfinite(scores[best]):
        if not np.isfinite(logits.max()):
            raise not_finite()
        raise RequestError(
            "no token may come next",
            "the constraint, the bad words and the stop tokens before min_tokens forbid them all",
        )
    if row.params.is_greedy:
        return best
    found = warp(scores, row.params)
    return found.token(draw(found.weights, uniform(row.seed, len(row.output))))


def not_finite() -> RequestError:
    """What is said where a model's numbers went out of range."""
    return RequestError(
        "the model gave logits that are not finite numbers",
        "a half-precision overflow is likely; compile with --precision fp32",
    )
