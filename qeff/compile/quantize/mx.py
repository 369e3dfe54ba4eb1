"""The OCP MX formats: a power of two for each block, and elements of 4, 6 or 8 bits.

Codes are those of the specification: sign, exponent, mantissa from the top bit down. Rounding is to
the nearest element, ties to the even mantissa, saturating. Works on blocks of floats along the last
axis; knows nothing of how codes are stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BIAS = 127  # of a block's stored exponent
_F32_MANTISSA_BITS = 23
_F32_BIAS = 127


@dataclass(frozen=True, slots=True)
class Element:
    """A small float: its fields, and the largest code of a number."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    min_exponent: int  # of normal numbers
    max_exponent: int
    largest_code: int

    @property
    def sign_bit(self) -> int:
        return self.exponent_bits + self.mantissa_bits

    @property
    def unit(self) -> int:
        """An element times this is a whole number."""
        return 1 << (self.mantissa_bits - self.min_exponent)


E2M1 = Element("e2m1", 2, 1, 0, 2, 0b111)
E2M3 = Element("e2m3", 2, 3, 0, 2, 0b11111)
E4M3 = Element("e4m3", 4, 3, -6, 8, 0b1111110)  # the code above is NaN
ELEMENTS = {"mxfp4": E2M1, "mxfp6": E2M3, "mxfp8": E4M3}


def shared_exponents(blocks: np.ndarray, element: Element) -> np.ndarray:
    """The exponent of each block: that of its largest value less the element's own largest."""
    largest = np.abs(blocks).max(-1)
    exponent = np.frexp(largest)[1] - 1 - element.max_exponent  # frexp: floor(log2) plus one
    exponent = np.where(largest == 0, -BIAS, exponent)
    return np.asarray(np.clip(exponent, -BIAS, BIAS), np.int32)


def element_codes(values: np.ndarray, element: Element) -> np.ndarray:
    """The code of the nearest element for each float32 value."""
    magnitude = np.abs(values)
    exponent = (magnitude.view(np.int32) >> _F32_MANTISSA_BITS) - _F32_BIAS
    np.clip(exponent, element.min_exponent, element.max_exponent + 1, out=exponent)
    per_step = (_F32_BIAS + element.mantissa_bits - exponent) << _F32_MANTISSA_BITS
    # Counted in steps of its exponent a number is the rest of its code: a carry of the rounding
    # goes on into the exponent field, and numbers below the smallest normal one need no case.
    code = np.rint(magnitude * per_step.view(np.float32))
    code += (exponent - element.min_exponent) << element.mantissa_bits
    np.minimum(code, element.largest_code, out=code)
    signs = np.signbit(values).astype(np.uint8) << element.sign_bit
    return np.asarray(code.astype(np.uint8) | signs)


def quantise_mx(blocks: np.ndarray, element: Element) -> tuple[np.ndarray, np.ndarray]:
    """The exponents [...] and the codes [..., 32] of float32 blocks."""
    exponents = shared_exponents(blocks, element)
    return exponents, element_codes(blocks * power_of_two(-exponents)[..., None], element)


def search_exponents(blocks: np.ndarray, element: Element, importance: np.ndarray) -> np.ndarray:
    """The exponent of each block with the least weighted error, near the specification's own.

    One more cuts no value, and one less has finer steps for the small ones.
    """
    own = shared_exponents(blocks, element)
    values = element_values(element)
    best, least = own, np.full(own.shape, np.inf, np.float32)
    for offset in (0, 1, -1):
        exponents = np.clip(own + offset, -BIAS, BIAS)
        scale = power_of_two(exponents)[..., None]
        error = values[element_codes(blocks / scale, element)] * scale - blocks
        found = np.einsum("...i,...i->...", error * importance, error)
        best = np.where(found < least, exponents, best)
        least = np.minimum(found, least)
    return np.asarray(best, np.int32)


def power_of_two(exponents: np.ndarray) -> np.ndarray:
    """2 to the power of whole numbers from −127 to 127, exactly, as float32."""
    return np.asarray(np.ldexp(np.float32(1), exponents), np.float32)


def element_values(element: Element) -> np.ndarray:
    """The number that each code stands for, float32 [codes]."""
    codes = np.arange(1 << (element.sign_bit + 1))
    magnitude = codes & ((1 << element.sign_bit) - 1)
    field = magnitude >> element.mantissa_bits
    mantissa = magnitude & ((1 << element.mantissa_bits) - 1)
    steps = np.where(field > 0, mantissa + (1 << element.mantissa_bits), mantissa)
    exponent = np.maximum(field, 1) - 1 + element.min_exponent - element.mantissa_bits
    values = np.ldexp(steps.astype(np.float64), exponent)
    values[magnitude > element.largest_code] = np.nan
    return np.asarray(np.where(codes >> element.sign_bit, -values, values), np.float32)
