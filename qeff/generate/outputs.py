"""The outputs of one request put together: which of several is the answer, and what comes beside.

Knows nothing of how they were made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from qeff.generate.request import Result


def combine(results: Sequence[Result], num_wanted: int) -> Result:
    """The best result with ``num_wanted`` − 1 alternatives; in order of index where all are kept.

    Where there are more than are wanted, the likeliest are kept, the likeliest first.
    """
    assert results, "a request has at least one output"
    if results[0].alternatives:  # a beam search has put its outputs together itself
        return results[0]
    ordered = sorted(results, key=lambda result: result.index)
    if num_wanted < len(ordered):
        ordered.sort(key=lambda result: -(result.cumulative_logprob or 0.0))
    best, *others = ordered[:num_wanted]
    return replace(best, alternatives=tuple(others))
