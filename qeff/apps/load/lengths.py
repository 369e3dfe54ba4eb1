"""How many tokens a prompt or an answer has: a fixed number, or any of a range.

Also when requests arrive. Draws from a generator that the caller seeded; knows nothing of text.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Lengths:
    """Whole numbers of ``least`` to ``most``, all equally likely."""

    least: int
    most: int

    @classmethod
    def parse(cls, text: str) -> Lengths:
        """``128``, or ``32:512`` for a range."""
        low, colon, high = text.partition(":")
        try:
            found = cls(int(low), int(high if colon else low))
        except ValueError:
            what = f"{text!r} is neither a number such as 128 nor a range such as 32:512"
            raise argparse.ArgumentTypeError(what) from None
        if found.least < 1 or found.most < found.least:
            raise argparse.ArgumentTypeError(f"{text!r} is no range of 1 and more")
        return found

    def draw(self, generator: np.random.Generator, count: int) -> list[int]:
        """So many lengths."""
        return [int(n) for n in generator.integers(self.least, self.most + 1, count)]

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least}:{self.most}"


def arrivals(
    generator: np.random.Generator, count: int, rate: float, burstiness: float
) -> list[float]:
    """When requests are sent, in seconds from the beginning.

    Gaps follow a gamma distribution whose shape is ``burstiness``: 1 is a Poisson process, less
    comes in bursts, more is steadier. They are stretched so that the last is sent after
    ``count / rate`` seconds whatever the seed, as vLLM does it.
    """
    ends = np.cumsum(generator.gamma(burstiness, 1.0 / (rate * burstiness), count))
    return [float(end) for end in ends * (count / rate / ends[-1])]
