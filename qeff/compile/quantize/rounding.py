"""The block formats behind one door: scales of blocks, codes of values, values of codes.

What differs between them is in ``scale_search`` and ``mx``. Takes float32; knows nothing of how
scales and codes are stored, nor of what a matrix is for.
"""

from __future__ import annotations

import numpy as np

from qeff.compile.quantize.blocks import BLOCK_LEN, levels_of
from qeff.compile.quantize.mx import (
    BIAS,
    ELEMENTS,
    element_codes,
    element_values,
    power_of_two,
    quantise_mx,
    search_exponents,
)
from qeff.compile.quantize.scale_search import (
    TRIED,
    TRIED_WEIGHED,
    quantise_q4_0,
    quantise_q8_0,
)

__all__ = ["BLOCK_FORMATS", "BLOCK_LEN", "codes_of", "quantise", "restore", "scales_of"]

BLOCK_FORMATS = ("q8_0", "q4_0", *ELEMENTS)
_VALUES = {form: element_values(element) for form, element in ELEMENTS.items()}
_SIGN = np.uint8(0x80)


def quantise(
    blocks: np.ndarray, form: str, importance: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The scales [...] as they are stored, and the codes uint8 [..., 32].

    ``importance`` weighs the squared error of each value and broadcasts against the blocks.
    """
    if form == "q8_0":
        return quantise_q8_0(blocks)
    if form == "q4_0":
        return quantise_q4_0(blocks, importance, TRIED if importance is None else TRIED_WEIGHED)
    element = ELEMENTS[form]
    if importance is None:
        exponents, codes = quantise_mx(blocks, element)
    else:
        exponents = search_exponents(blocks, element, importance)
        codes = element_codes(blocks * power_of_two(-exponents)[..., None], element)
    return (exponents + BIAS).astype(np.uint8), codes


def scales_of(stored: np.ndarray, form: str) -> np.ndarray:
    """Stored scales as float32."""
    if form in ELEMENTS:
        return power_of_two(stored.astype(np.int32) - BIAS)
    return stored.astype(np.float32)


def codes_of(values: np.ndarray, scales: np.ndarray, form: str) -> np.ndarray:
    """The code of the nearest level of each value, uint8 [...]; a scale for each value."""
    if form in ELEMENTS:
        return element_codes(values / scales, ELEMENTS[form])
    if form == "q8_0":
        return levels_of(values[..., None], scales, 8)[..., 0] ^ _SIGN
    return levels_of(values[..., None], scales, 4)[..., 0]


def restore(codes: np.ndarray, scales: np.ndarray, form: str) -> np.ndarray:
    """The float32 values that codes stand for; scales broadcast against them."""
    if form in ELEMENTS:
        return np.asarray(_VALUES[form][codes] * scales)
    levels = codes.view(np.int8) if form == "q8_0" else codes.astype(np.int8) - np.int8(8)
    return np.asarray(levels * scales)
