"""Blocks of 32 with a float16 scale: eight bits by rounding, four bits by a search for the scale.

The numbers of GGUF's Q8_0 and Q4_0. Codes are chosen for the scale as it is stored. With four bits
the scale decides the error: several are tried for each block, each is moved to the least squares
fit of the codes that it gives, and the best is kept. Takes float32 blocks along the last axis.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qeff.compile.quantize.blocks import levels_of, scales_of

_LARGEST_HALF = 65504.0
# The level that the largest value of a block falls on: −8 is the end of the range, beyond it the
# largest value is cut, and on the positive side there are only seven levels.
TRIED = (-8.0, -7.7, -7.3, -6.9, -8.4, -8.9, 7.0, 7.4, 6.6, 7.9)
# Where the weights of the error are known, the best scale may be farther away.
TRIED_WEIGHED = (*TRIED, -6.3, -6.6, -7.1, -7.5, -8.2, -8.65, -9.2, 6.2, 6.8, 7.2, 7.6)


def quantise_q8_0(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales float16 [...] and signed codes, as bytes, [..., 32]."""
    scales = _as_half(scales_of(blocks, 8))
    levels = levels_of(blocks, scales.astype(np.float32), 8)
    return scales, levels ^ np.uint8(0x80)  # from around 128 to two's complement


def quantise_q4_0(
    blocks: np.ndarray, importance: np.ndarray | None = None, tried: Sequence[float] = TRIED
) -> tuple[np.ndarray, np.ndarray]:
    """Scales float16 [...] and codes from 0 to 15 [..., 32]; value = scale · (code − 8).

    ``importance`` weighs the squared error of each value and broadcasts against the blocks.
    """
    weighed = blocks if importance is None else blocks * importance
    low, high = blocks.min(-1), blocks.max(-1)
    extreme = np.where(-low > high, low, high)
    inverse = np.divide(1, extreme, out=np.zeros_like(extreme), where=extreme != 0)
    levels, best_gain, best = np.empty_like(blocks), np.full_like(extreme, -1), extreme / -8
    for level in tried:
        np.multiply(blocks, (np.float32(level) * inverse)[..., None], out=levels)
        np.rint(levels, out=levels)
        np.clip(levels, -8, 7, out=levels)
        product = np.einsum("...i,...i->...", weighed, levels)
        squares = levels if importance is None else levels * importance
        square = np.einsum("...i,...i->...", squares, levels)
        scale = np.divide(product, square, out=np.zeros_like(product), where=square > 0)
        gain = product * scale  # the part of the block's energy that the scale explains
        is_better = gain > best_gain
        np.copyto(best_gain, gain, where=is_better)
        np.copyto(best, scale, where=is_better)
    stored = _as_half(best)
    return stored, levels_of(blocks, stored.astype(np.float32), 4)


def _as_half(scales: np.ndarray) -> np.ndarray:
    return np.asarray(np.clip(scales, -_LARGEST_HALF, _LARGEST_HALF), np.float16)
