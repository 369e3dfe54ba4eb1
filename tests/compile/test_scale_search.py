"""Scales in float16: eight bits within half a step, four bits better than rounding alone."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qeff.compile.quantize.scale_search import quantise_q4_0, quantise_q8_0


def restore(scales: np.ndarray, levels: np.ndarray) -> np.ndarray:
    return levels.astype(np.float32) * scales.astype(np.float32)[..., None]


def squared_error(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.square(found - wanted, dtype=np.float64).sum())


def q4_0_error(blocks: np.ndarray, importance: np.ndarray | None = None) -> np.ndarray:
    scales, codes = quantise_q4_0(blocks, importance)
    assert codes.max() <= 15 and scales.dtype == np.float16
    return restore(scales, codes.astype(np.int8) - np.int8(8)) - blocks


@given(seed=st.integers(0, 999), exponent=st.integers(-3, 4))
def test_eight_bits_are_within_half_a_step(seed: int, exponent: int) -> None:
    rng = np.random.default_rng(seed)
    blocks = (rng.standard_normal((4, 3, 32)) * 10.0**exponent).astype(np.float32)
    scales, codes = quantise_q8_0(blocks)
    found = restore(scales, codes.view(np.int8))
    step = scales.astype(np.float32)[..., None]
    # A scale that was rounded down in float16 leaves the largest value a little outside.
    outside = 127 * step * 2.0**-10
    assert (np.abs(found - blocks) <= 0.5001 * step + outside).all()


def heavy(rng: np.random.Generator) -> np.ndarray:
    return rng.standard_t(5, (4096, 32))


def normal(rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((4096, 32))


@pytest.mark.parametrize(("draw", "bar"), [(normal, 0.90), (heavy, 0.93)])
def test_four_bits_beat_the_plain_rounding_of_q4_0(draw, bar: float) -> None:
    blocks = draw(np.random.default_rng(3)).astype(np.float32)
    kind = gguf.GGMLQuantizationType.Q4_0
    rounded = gguf.dequantize(gguf.quantize(blocks, kind), kind)
    found = float(np.square(q4_0_error(blocks), dtype=np.float64).sum())
    assert found <= bar * squared_error(rounded, blocks)


def test_no_other_scale_is_much_better() -> None:
    """Against every scale of a fine grid, codes rounded for each: the search misses little."""
    blocks = np.random.default_rng(5).standard_normal((512, 32)).astype(np.float32)
    found = np.square(q4_0_error(blocks)).sum(1)
    largest = np.abs(blocks).max(1)
    best = np.full(len(blocks), np.inf)
    for scale in np.concatenate([np.linspace(-0.25, -0.08, 200), np.linspace(0.08, 0.25, 200)]):
        step = (scale * largest)[:, None]
        levels = np.clip(np.rint(blocks / step), -8, 7)
        best = np.minimum(best, np.square(levels * step - blocks).sum(1))
    assert found.sum() <= 1.01 * best.sum()
    assert (found <= 1.3 * best).all()


def test_importance_moves_the_error_to_where_it_counts_less() -> None:
    rng = np.random.default_rng(4)
    blocks = rng.standard_normal((2048, 32)).astype(np.float32)
    importance = np.where(np.arange(32) < 8, 20.0, 1.0).astype(np.float32)
    plain, weighed = np.square(q4_0_error(blocks)), np.square(q4_0_error(blocks, importance))
    assert (weighed * importance).sum() < 0.97 * (plain * importance).sum()
    assert weighed[:, :8].sum() < plain[:, :8].sum()


def test_extremes_give_numbers() -> None:
    rows = [np.zeros(32), np.full(32, 1e-9), np.full(32, 1e9), np.r_[-5.0, np.zeros(31)]]
    blocks = np.asarray(rows, np.float32)
    for quantise in (quantise_q8_0, quantise_q4_0):
        scales, codes = quantise(blocks)
        assert np.isfinite(scales).all()
        levels = codes.view(np.int8) if quantise is quantise_q8_0 else codes.astype(np.int8) - 8
        found = restore(scales, levels)
        assert not found[0].any()
        np.testing.assert_allclose(found[3], blocks[3], rtol=1e-3)
        assert (found[2] > 0).all()
