"""Random numbers and draws: the numbers are numpy's, and the draws follow the distribution."""

from __future__ import annotations

import numpy as np
import pytest

from qeff.generate import SamplingParams
from qeff.generate.sampling import Row, sample, seed_of, uniform
from qeff.generate.sampling.draw import draw
from qeff.generate.sampling.warp import warp


def check_chi_square(counts, shares):
    """The counts are neither too far from the shares nor too near; both at one in a thousand."""
    expected = counts.sum() * shares
    assert expected.min() >= 5
    chi2 = np.sum((counts - expected) ** 2 / expected)
    freedom = len(counts) - 1
    low, high = (  # Wilson and Hilferty's approximation
        freedom * (1 - 2 / (9 * freedom) + z * np.sqrt(2 / (9 * freedom))) ** 3
        for z in (-3.09, 3.09)
    )
    assert low < chi2 < high, (low, chi2, high)


def test_numbers_are_those_of_philox():
    for seed in (0, 7, 2**64 - 1, seed_of(7, 3)):
        for index in (0, 1, 1000, 2**40):
            generator = np.random.Generator(np.random.Philox(key=seed, counter=index))
            assert uniform(seed, index) == generator.random()


def test_numbers_of_neighbouring_seeds_and_steps_are_independent():
    table = np.array([[uniform(seed, step) for step in range(200)] for seed in range(50)])
    others = np.array([[uniform(seed_of(3, n), step) for step in range(200)] for n in range(50)])
    for values in (table, others):
        assert len(np.unique(values)) == values.size
        assert abs(values.mean() - 0.5) < 0.01
        across = np.corrcoef(values[:-1].ravel(), values[1:].ravel())[0, 1]
        along = np.corrcoef(values[:, :-1].ravel(), values[:, 1:].ravel())[0, 1]
        assert abs(across) < 0.04 and abs(along) < 0.04


def test_the_first_of_n_has_the_requests_seed():
    assert seed_of(11, 0) == 11
    assert len({seed_of(seed, choice) for seed in (0, 1, 2**64 - 1) for choice in range(9)}) == 27


@pytest.mark.parametrize("by", ["seed", "index"])
def test_samples_follow_the_distribution(by):
    params = SamplingParams(temperature=1.3, top_k=12, top_p=0.97)
    logits = np.random.default_rng(0).standard_normal(211).astype(np.float32)
    found = warp(logits, params)
    assert 5 <= len(found.tokens) <= 12
    num, seeds = 6000, np.random.default_rng(5).integers(0, 2**63, 6000).tolist()
    rows = [
        Row(params, seeds[i]) if by == "seed" else Row(params, 99, output=range(i))
        for i in range(num)
    ]
    chosen = sample(np.broadcast_to(logits, (num, 211)), rows)
    counts = np.bincount([choice.token for choice in chosen], minlength=211)
    assert counts[found.tokens].sum() == num
    shares = found.weights.astype(np.float64)
    check_chi_square(counts[found.tokens], shares / shares.sum())


@pytest.mark.parametrize("size", [20, 1024, 5000])  # at once, the most at once, by blocks
def test_draws_follow_the_weights(size):
    weights = np.random.default_rng(size).random(size).astype(np.float32)
    weights[::7] = 0
    num = 20_000
    counts = np.bincount([draw(weights, uniform(3, i)) for i in range(num)], minlength=size)
    assert counts[weights == 0].sum() == 0
    shares = weights.astype(np.float64) / weights.sum(dtype=np.float64)
    groups = np.arange(size) * min(20, size // 4) // size  # so that each has enough
    check_chi_square(np.bincount(groups, counts), np.bincount(groups, shares))


@pytest.mark.parametrize("size", [1, 2, 300, 1025, 4999])
def test_a_draw_inverts_the_sum(size):
    weights = np.random.default_rng(size).random(size).astype(np.float32)
    sums = np.cumsum(weights.astype(np.float64)) / weights.sum(dtype=np.float64)
    for place in np.unique(np.linspace(0, size - 1, 50).astype(int)):
        middle = sums[place] - weights[place] / weights.sum(dtype=np.float64) / 2
        assert draw(weights, float(middle)) == place
    assert draw(weights, 0.0) == 0
    assert draw(weights, np.nextafter(1.0, 0.0)) == size - 1


@pytest.mark.parametrize("size", [10, 3000])
def test_a_draw_never_gives_a_token_of_weight_zero(size):
    weights = np.zeros(size, np.float32)
    weights[size // 2] = 1e-30
    for number in (0.0, 0.5, float(np.nextafter(1.0, 0.0))):
        assert draw(weights, number) == size // 2
