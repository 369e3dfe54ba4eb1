"""Random numbers without state, and the one draw that a token costs.

The number of a token is a function of the request's seed and the token's index, so a request gives
the same tokens alone, in a batch, after preemption and with speculation. Knows nothing of logits.
"""

from __future__ import annotations

import math

import numpy as np

_WORD = 2**64 - 1

# Philox 4x64 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10

_BLOCK = 256
_BELOW_ONE = math.nextafter(1.0, 0.0)


def seed_of(seed: int, choice: int) -> int:
    """The seed of one of a request's n outputs; that of the first is the request's own."""
    return seed | choice << 64


def uniform(seed: int, index: int) -> float:
    """The random number in [0, 1) of a token: the first of numpy's Philox(seed, counter=index)."""
    # In plain integers it takes a third of the time of making numpy's generator.
    key0, key1 = seed & _WORD, seed >> 64
    multiplier0, multiplier1 = _MULTIPLIERS
    a, b, c, d = index + 1, 0, 0, 0
    for _ in range(_ROUNDS):
        first, second = multiplier0 * a, multiplier1 * c
        a, b = (second >> 64) ^ b ^ key0, second & _WORD
        c, d = (first >> 64) ^ d ^ key1, first & _WORD
        key0, key1 = (key0 + _WEYL[0]) & _WORD, (key1 + _WEYL[1]) & _WORD
    return (a >> 11) * 2.0**-53


def draw(weights: np.ndarray, number: float) -> int:
    """The place at which a distribution, given as weights [N] of any sum, has ``number`` in it."""
    start = 0
    if len(weights) > 4 * _BLOCK:
        # Sums of blocks first: a running sum of a whole vocabulary takes four times as long.
        starts = np.arange(0, len(weights), _BLOCK)
        sums = np.add.reduceat(weights, starts, dtype=np.float64).cumsum()
        wanted = number * float(sums[-1])
        block = int(sums.searchsorted(wanted, side="right"))
        before = float(sums[block - 1]) if block else 0.0
        number = min((wanted - before) / (float(sums[block]) - before), _BELOW_ONE)
        start = block * _BLOCK
        weights = weights[start : start + _BLOCK]
    sums = weights.cumsum(dtype=np.float64)
    # The first whose sum is above: its own weight is never zero.
    return start + int(sums.searchsorted(number * float(sums[-1]), side="right"))
