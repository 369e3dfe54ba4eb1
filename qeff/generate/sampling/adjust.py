"""What changes logits before the likeliest is looked for: bias, masks and penalties.

Pure functions on one row of logits. Knows nothing of temperature, filters or random numbers.
"""

from __future__ import annotations

import numpy as np

from qeff.generate.sampling.history import History
from qeff.generate.sampling.row import Row

# For each byte of a mask the largest logit that its eight tokens may have.
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_LIMITS = np.where(_BITS == 1, np.inf, -np.inf).astype(np.float32)


def adjust(logits: np.ndarray, row: Row) -> np.ndarray:
    """Bias, bad words, forbidden tokens, the mask, penalties: float32 [vocab], a copy."""
    scores = logits.copy()
    if row.params.has_adjustments:
        history = row.history or History(row.params, row.prompt, row.output)
        if row.params.logit_bias:
            scores[history.biased] += history.bias
        if row.params.bad_token_ids:
            scores[bad_tokens(row, history)] = -np.inf
        if row.bad_words is not None:
            for tokens in row.bad_words.completing(row.tail):
                scores[tokens] = -np.inf
    if row.forbidden:
        scores[list(row.forbidden)] = -np.inf
    if row.allowed is not None:
        mask(scores, row.allowed)
    if row.params.has_penalties:
        penalize(scores, row, history)
    return scores


def bad_tokens(row: Row, history: History) -> list[int]:
    """The tokens that would complete one of the request's bad sequences here."""
    last = row.tail(1)
    begun = history.banned_after.get(last[0], ()) if last else ()
    complete = [words[-1] for words in begun if row.tail(len(words) - 1) == words[:-1]]
    return [*history.banned, *complete]


def mask(scores: np.ndarray, allowed: np.ndarray) -> None:
    """Forbid, in place, every token whose bit is not set."""
    assert allowed.dtype.itemsize == 4, f"a mask of {allowed.dtype} words"
    limits = _LIMITS.take(allowed.astype("<i4", copy=False).view(np.uint8), axis=0).reshape(-1)
    known = scores[: len(limits)]
    np.minimum(known, limits[: len(scores)], out=known)
    scores[len(limits) :] = -np.inf


def penalize(scores: np.ndarray, row: Row, history: History) -> None:
    """The three penalties, in place.

    Repetition: the logit of a token in prompt or output is divided by the penalty when positive and
    multiplied when negative. Then presence + frequency · count is subtracted, of the output alone.
    """
    params = row.params
    assert history.num_output <= len(row.output), "the history is ahead of the row"
    tokens, counts = history.counts(row.output[history.num_output :])
    values = scores[tokens]
    if params.repetition_penalty != 1:
        penalty = np.float32(params.repetition_penalty)
        values = np.where(values < 0, values * penalty, values / penalty)
    amounts = params.presence_penalty * (counts > 0) + params.frequency_penalty * counts
    scores[tokens] = values - amounts.astype(np.float32)
