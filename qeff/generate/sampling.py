"""Logits to tokens: pure functions over rows, one row for each sequence that is due a token.

The order is penalties, temperature, top-k, top-p, min-p, then one draw. Every row is computed by
itself, and its random number depends on the request's seed and the token's index alone, so the
tokens of a request do not depend on what else is in the batch. Tokens of equal logits are kept or
removed together. Knows nothing of text or schedules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qeff.core.errors import RequestError
from qeff.generate.request import SamplingParams


@dataclass(frozen=True, slots=True)
class Row:
    """What the choice of one token depends on besides its logits."""

    params: SamplingParams
    seed: int
    prompt: Sequence[int] = ()
    output: Sequence[int] = ()
    forbidden: Sequence[int] = ()  # tokens that may not come yet


def sample(logits: np.ndarray, rows: Sequence[Row]) -> np.ndarray:
    """Choose a token for each row: logits [R, vocab] to int64 [R]."""
    assert logits.shape[0] == len(rows), f"{logits.shape[0]} rows of logits for {len(rows)} rows"
    tokens = np.empty(len(rows), np.int64)
    for index, row in enumerate(rows):
        scores = adjust(logits[index], row)
        if not np.isfinite(scores.max()):
            raise RequestError(
                "the model gave logits that are not finite numbers",
                "a half-precision overflow is likely; compile with --precision fp32",
            )
        if row.params.is_greedy:
            tokens[index] = np.argmax(scores)
        else:
            scores = warp(scores[None], row.params)[0]
            number = uniform(row.seed, len(row.output))
            tokens[index] = draw(scores[None], np.array([number]))[0]
    return tokens


def adjust(logits: np.ndarray, row: Row) -> np.ndarray:
    """Forbid tokens and apply the penalties: [vocab] to float32 [vocab], the input unchanged."""
    scores = logits.astype(np.float32, copy=bool(row.forbidden) or row.params.has_penalties)
    if row.forbidden:
        scores[list(row.forbidden)] = -np.inf
    if row.params.has_penalties:
        penalize_repetition(scores, (*row.prompt, *row.output), row.params.repetition_penalty)
        penalize_counts(
            scores, row.output, row.params.presence_penalty, row.params.frequency_penalty
        )
    return scores


def penalize_repetition(scores: np.ndarray, history: Sequence[int], penalty: float) -> None:
    """Divide positive logits of tokens in the history and multiply negative ones, in place."""
    if penalty == 1 or not history:
        return
    seen = np.unique(np.asarray(history, np.int64))
    values = scores[seen]
    scores[seen] = np.where(values < 0, values * penalty, values / penalty)


def penalize_counts(
    scores: np.ndarray, output: Sequence[int], presence: float, frequency: float
) -> None:
    """Subtract ``presence + frequency · count`` for each token of the output, in place."""
    if (presence == 0 and frequency == 0) or not output:
        return
    seen, counts = np.unique(np.asarray(output, np.int64), return_counts=True)
    scores[seen] -= (presence + frequency * counts).astype(scores.dtype)


def warp(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Temperature and the three filters on [R, vocab]; a removed token has logit −inf."""
    with np.errstate(over="ignore"):
        scores = logits.astype(np.float32) / np.float32(params.temperature)
    # A tiny temperature can overflow; the largest logit is what it means then.
    if not np.isfinite(scores.max(axis=-1)).all():
        scores = np.where(logits == logits.max(axis=-1, keepdims=True), np.float32(0), -np.inf)
    if params.top_k:
        scores = keep_top_k(scores, params.top_k)
    if params.top_p < 1:
        scores = keep_top_p(scores, params.top_p)
    if params.min_p:
        scores = keep_min_p(scores, params.min_p)
    return scores


def keep_top_k(logits: np.ndarray, k: int) -> np.ndarray:
    """Keep the k largest logits of each row, and what equals the smallest of them."""
    vocab = logits.shape[-1]
    if k >= vocab:
        return logits
    least = np.partition(logits, vocab - k, axis=-1)[..., vocab - k, None]  # [R, 1]
    return np.where(logits < least, -np.inf, logits)


def keep_top_p(logits: np.ndarray, p: float) -> np.ndarray:
    """Keep the likeliest tokens until their probabilities sum to p; never none."""
    ordered = -np.sort(-logits, axis=-1)  # descending
    likely = softmax(ordered)
    before = np.cumsum(likely, axis=-1) - likely  # probability of everything likelier
    num_kept = np.maximum((before < p).sum(axis=-1, keepdims=True), 1)  # [R, 1]
    least = np.take_along_axis(ordered, num_kept - 1, axis=-1)
    return np.where(logits < least, -np.inf, logits)


def keep_min_p(logits: np.ndarray, p: float) -> np.ndarray:
    """Keep tokens at least p times as likely as the likeliest of their row."""
    least = logits.max(axis=-1, keepdims=True) + np.log(p)
    return np.where(logits < least, -np.inf, logits)


def draw(logits: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """One token a row by inverting the distribution at ``numbers`` [R] in [0, 1)."""
    total = np.cumsum(softmax(logits), axis=-1)  # float64 [R, vocab]
    wanted = numbers * total[:, -1]
    # The first token whose sum is above the number; its own probability is never zero.
    return np.asarray(np.argmax(total > wanted[:, None], axis=-1))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities of each row, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    powers = np.exp(shifted)
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def uniform(seed: int, index: int) -> float:
    """The random number in [0, 1) of a request's token: a function of both, with no state."""
    return float(np.random.Generator(np.random.Philox(key=seed, counter=index)).random())
