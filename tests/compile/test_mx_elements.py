"""MX elements: every code, every tie and saturation as ml_dtypes has them; scales as OCP says."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qeff.compile.quantize.mx import ELEMENTS, element_codes, element_values, quantise_mx

DTYPES = {
    "mxfp4": ml_dtypes.float4_e2m1fn,
    "mxfp6": ml_dtypes.float6_e2m3fn,
    "mxfp8": ml_dtypes.float8_e4m3fn,
}
BITS = {"mxfp4": 4, "mxfp6": 6, "mxfp8": 8}
names = pytest.mark.parametrize("name", list(DTYPES))


def all_codes(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Every code that is a number, and the number, as ml_dtypes has it."""
    codes = np.arange(1 << BITS[name], dtype=np.uint8)
    values = codes.view(DTYPES[name]).astype(np.float32)
    return codes[~np.isnan(values)], values[~np.isnan(values)]


def expected_codes(name: str, values: np.ndarray) -> np.ndarray:
    largest = np.float32(ml_dtypes.finfo(DTYPES[name]).max)
    return np.clip(values, -largest, largest).astype(DTYPES[name]).view(np.uint8)


@names
def test_every_code_has_its_value_and_is_found_again(name: str) -> None:
    codes, values = all_codes(name)
    np.testing.assert_array_equal(element_values(ELEMENTS[name])[codes], values)
    # Zero has two codes, told apart by the sign.
    np.testing.assert_array_equal(element_codes(values, ELEMENTS[name]), codes)


def test_the_codes_that_are_no_numbers_are_those_of_e4m3() -> None:
    values = element_values(ELEMENTS["mxfp8"])
    assert np.flatnonzero(np.isnan(values)).tolist() == [0x7F, 0xFF]
    assert not np.isnan(element_values(ELEMENTS["mxfp6"])).any()
    assert not np.isnan(element_values(ELEMENTS["mxfp4"])).any()


@names
def test_ties_go_to_the_even_mantissa_and_all_else_to_the_nearest(name: str) -> None:
    _, values = all_codes(name)
    grid = np.unique(values)
    ties = ((grid[1:].astype(np.float64) + grid[:-1]) / 2).astype(np.float32)
    around = np.concatenate([np.nextafter(ties, -np.inf), ties, np.nextafter(ties, np.inf)])
    found = element_codes(around, ELEMENTS[name])
    np.testing.assert_array_equal(found, expected_codes(name, around))
    even = element_codes(ties, ELEMENTS[name]) & 1
    np.testing.assert_array_equal(even, 0)


@names
def test_values_beyond_the_largest_saturate(name: str) -> None:
    largest = np.float32(ml_dtypes.finfo(DTYPES[name]).max)
    values = np.array([1.001, 1.06, 1.5, 1e6, np.inf], np.float32) * largest
    values = np.concatenate([values, -values])
    found = element_values(ELEMENTS[name])[element_codes(values, ELEMENTS[name])]
    np.testing.assert_array_equal(found, np.copysign(largest, values))


@names
@given(seed=st.integers(0, 9999))
def test_random_values_agree_with_ml_dtypes(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = (rng.standard_normal(64) * np.exp2(rng.integers(-12, 12, 64))).astype(np.float32)
    found = element_codes(values, ELEMENTS[name])
    np.testing.assert_array_equal(found, expected_codes(name, values))


@names
def test_the_scale_is_that_of_the_largest_value(name: str) -> None:
    element = ELEMENTS[name]
    blocks = np.zeros((5, 32), np.float32)
    below = np.nextafter(np.float32(8), np.float32(0))
    blocks[:, 3] = [1.0, -1.75, below, 2.0**100, 2.0**-140]
    exponents, codes = quantise_mx(blocks, element)
    wanted = np.array([0, 0, 2, 100, -140]) - element.max_exponent
    np.testing.assert_array_equal(exponents, np.maximum(wanted, -127))
    found = element_values(element)[codes[:, 3]] * np.exp2(exponents.astype(np.float64))
    np.testing.assert_allclose(found[:2], [1.0, -1.75] if name != "mxfp4" else [1.0, -1.5])
    assert found[3] == 2.0**100
    # A block too small for any scale falls on the nearest multiple of the smallest step.
    step = 2.0**-127 / element.unit
    assert abs(found[4] - 2.0**-140) <= step / 2


def test_a_block_of_zeros_has_the_smallest_scale() -> None:
    for element in ELEMENTS.values():
        exponents, codes = quantise_mx(np.zeros((1, 32), np.float32), element)
        assert exponents[0] == -127 and not codes.any()
