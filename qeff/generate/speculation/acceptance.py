"""How often drafted tokens are right, by their depth: means that forget.

A depth that was hardly tried borrows from the depth before it. Knows nothing of time or of who
drafted.
"""

from __future__ import annotations

MEMORY = 64  # drafts that a depth's mean is of
PRIOR = 0.7  # what the first drafts are thought to be worth: enough to try
PRIOR_COUNT = 2.0  # and how many drafts that thought weighs


class Acceptance:
    """For each depth the probability that a drafted token is kept when all before it were."""

    def __init__(self, before: Acceptance | None = None, prior_count: float = PRIOR_COUNT) -> None:
        self._before = before  # whose rates are borrowed where there are none
        self._prior_count = prior_count
        self._tried: list[float] = []
        self._kept: list[float] = []
        self._rates: list[float] | None = None

    @property
    def depth(self) -> int:
        """The deepest token that was tried."""
        return len(self._tried)

    def note(self, num_drafted: int, num_accepted: int) -> None:
        """Take in a draft of this depth and how many of its tokens were kept."""
        num_tried = min(num_drafted, num_accepted + 1)
        missing = num_tried - len(self._tried)
        self._tried += [0.0] * missing
        self._kept += [0.0] * missing
        for depth in range(num_tried):
            self._tried[depth] += 1 - self._tried[depth] / MEMORY
            self._kept[depth] += (depth < num_accepted) - self._kept[depth] / MEMORY
        self._rates = None

    def rates(self, depth: int) -> list[float]:
        """The probabilities of the first ``depth`` depths."""
        borrowed = self._before.rates(depth) if self._before is not None else None
        if borrowed is None and self._rates is not None and len(self._rates) >= depth:
            return self._rates[:depth]
        rates, rate = [], PRIOR
        for index in range(depth):
            rate = borrowed[index] if borrowed is not None else rate
            if index < len(self._tried):
                weight = self._prior_count
                rate = (self._kept[index] + weight * rate) / (self._tried[index] + weight)
            rates.append(rate)
        self._rates = rates
        return rates
