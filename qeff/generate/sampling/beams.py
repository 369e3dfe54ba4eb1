"""Which tokens a beam may go on with: the likeliest of each row after bias, masks and penalties.

Knows nothing of beams' own scores, of how they are compared or of when a search ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qeff.generate.request import Choice
from qeff.generate.sampling.adjust import adjust
from qeff.generate.sampling.logprobs import largest, likeliest, log_total
from qeff.generate.sampling.row import Row

Continuation = tuple[float, Choice]


def expand(logits: np.ndarray, rows: Sequence[Row], count: int) -> list[list[Continuation]]:
    """For each row of logits [R, vocab] its ``count`` likeliest tokens, the likeliest first.

    A token's score, which decides, is its adjusted logit less the log of the model's own total: its
    log-probability where nothing is adjusted. Fewer are given where fewer may come.
    """
    assert len(logits) == len(rows), f"{len(logits)} rows of logits for {len(rows)} rows"
    logits = np.ascontiguousarray(logits, np.float32)
    found = []
    for raw, row in zip(logits, rows, strict=True):
        total = log_total(raw)
        scores = adjust(raw, row) if row.is_adjusted else raw
        top = likeliest(raw, total, row.params.logprobs or 0)
        found.append(
            [
                (float(scores[token]) - total, Choice(token, float(raw[token]) - total, top))
                for token in largest(scores, count)
                if scores[token] > -np.inf
            ]
        )
    return found
