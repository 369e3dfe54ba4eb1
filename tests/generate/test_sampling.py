"""Sampling against transformers' own processors and against the distribution it must follow."""

from __future__ import annotations

import numpy as np
import pytest

from qeff.core.errors import RequestError
from qeff.generate import SamplingParams
from qeff.generate import sampling as ours

torch = pytest.importorskip("torch")
theirs = pytest.importorskip("transformers.generation.logits_process")

VOCAB = 211


def logits(rows=6, scale=3.0, seed=0):
    values = np.random.default_rng(seed).standard_normal((rows, VOCAB)) * scale
    return values.astype(np.float32)


def hf(processor, scores, history=None):
    ids = torch.tensor(np.zeros((len(scores), 1), np.int64) if history is None else history)
    return processor(ids, torch.tensor(scores)).numpy()


@pytest.mark.parametrize("k", [1, 2, 50, VOCAB, 1000])
def test_top_k(k):
    scores = logits()
    expected = hf(theirs.TopKLogitsWarper(k), scores)
    np.testing.assert_array_equal(ours.keep_top_k(scores, k), expected)


@pytest.mark.parametrize("scale", [0.2, 3.0, 20.0])
@pytest.mark.parametrize("p", [1e-6, 0.1, 0.5, 0.9, 0.999])
def test_top_p(p, scale):
    scores = logits(scale=scale)
    expected = hf(theirs.TopPLogitsWarper(p), scores)
    np.testing.assert_array_equal(ours.keep_top_p(scores, p), expected)


@pytest.mark.parametrize("p", [1e-4, 0.05, 0.5, 1.0])
def test_min_p(p):
    scores = logits()
    expected = hf(theirs.MinPLogitsWarper(p), scores)
    np.testing.assert_array_equal(ours.keep_min_p(scores, p), expected)


@pytest.mark.parametrize("penalty", [0.7, 1.3])
def test_repetition_penalty(penalty):
    scores = logits(rows=1)
    history = [3, 5, 3, 3, 100, 210]
    expected = hf(theirs.RepetitionPenaltyLogitsProcessor(penalty), scores, [history])[0]
    row = ours.Row(SamplingParams(repetition_penalty=penalty), 0, history[:4], history[4:])
    before = scores.copy()
    np.testing.assert_allclose(ours.adjust(scores[0], row), expected, rtol=1e-6)
    np.testing.assert_array_equal(scores, before)  # the session's logits are not touched


def test_presence_and_frequency_penalties_count_the_output_only():
    scores = logits(rows=1)[0]
    params = SamplingParams(presence_penalty=0.5, frequency_penalty=-0.25)
    found = ours.adjust(scores, ours.Row(params, 0, prompt=[1, 2], output=[7, 9, 7, 7]))
    expected = scores.copy()
    expected[7] -= 0.5 - 0.25 * 3
    expected[9] -= 0.5 - 0.25
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_whole_chain_in_transformers_order():
    params = SamplingParams(temperature=0.7, top_k=40, top_p=0.8, min_p=0.02)
    scores = logits(rows=30, scale=2.0)
    expected = scores
    for processor in (
        theirs.TemperatureLogitsWarper(0.7),
        theirs.TopKLogitsWarper(40),
        theirs.TopPLogitsWarper(0.8),
        theirs.MinPLogitsWarper(0.02),
    ):
        expected = hf(processor, expected)
    np.testing.assert_allclose(ours.warp(scores, params), expected, rtol=1e-6)
    np.testing.assert_allclose(
        ours.softmax(scores), torch.tensor(scores).softmax(-1).numpy(), rtol=1e-5
    )


def test_draws_follow_the_distribution():
    params = SamplingParams(temperature=1.3, top_k=12, top_p=0.97)
    scores = logits(rows=1, scale=1.0)
    expected = ours.softmax(ours.warp(scores, params))[0]
    num_draws = 20_000
    numbers = np.array([ours.uniform(99, index) for index in range(num_draws)])
    found = ours.draw(np.repeat(ours.warp(scores, params), num_draws, axis=0), numbers)
    counts = np.bincount(found, minlength=VOCAB)
    kept = expected > 0
    assert counts[~kept].sum() == 0
    chi2 = np.sum((counts[kept] - num_draws * expected[kept]) ** 2 / (num_draws * expected[kept]))
    freedom = kept.sum() - 1
    assert 5 <= freedom <= 11
    assert chi2 < 31.3  # the 0.1 % point for 11 degrees, so above it for fewer
    assert chi2 > 0.1  # too good would mean the numbers are not random


def test_numbers_of_neighbouring_seeds_and_steps_are_independent():
    table = np.array([[ours.uniform(seed, step) for step in range(200)] for seed in range(50)])
    assert len(np.unique(table)) == table.size
    assert abs(table.mean() - 0.5) < 0.01
    across = np.corrcoef(table[:-1].ravel(), table[1:].ravel())[0, 1]
    along = np.corrcoef(table[:, :-1].ravel(), table[:, 1:].ravel())[0, 1]
    assert abs(across) < 0.04 and abs(along) < 0.04
    assert ours.uniform(2**64 - 1, 2**40) == ours.uniform(2**64 - 1, 2**40)


def test_a_row_does_not_depend_on_its_neighbours():
    scores = logits(rows=40)
    rows = [
        ours.Row(
            SamplingParams(
                temperature=0.5 * (index % 3),
                top_k=5 * (index % 4),
                top_p=1 - 0.1 * (index % 5),
                repetition_penalty=1 + 0.1 * (index % 2),
            ),
            seed=index,
            prompt=[index],
            output=list(range(index)),
        )
        for index in range(40)
    ]
    together = ours.sample(scores, rows)
    single = [ours.sample(scores[i : i + 1], [row])[0] for i, row in enumerate(rows)]
    shuffled = np.random.default_rng(1).permutation(40)
    np.testing.assert_array_equal(together, single)
    np.testing.assert_array_equal(
        ours.sample(scores[shuffled], [rows[index] for index in shuffled]), together[shuffled]
    )


@pytest.mark.parametrize("temperature", [0.0, 1e-38, 1e-3])
def test_a_temperature_near_zero_is_greedy(temperature):
    scores = logits(rows=8, scale=30.0)
    rows = [ours.Row(SamplingParams(temperature=temperature), seed) for seed in range(8)]
    np.testing.assert_array_equal(ours.sample(scores, rows), scores.argmax(-1))


def test_forbidden_tokens_never_come():
    scores = logits(rows=1)
    best = int(scores.argmax())
    row = ours.Row(SamplingParams(), 0, forbidden=[best])
    scores_without = np.delete(scores[0], best)
    assert scores[0, ours.sample(scores, [row])[0]] == scores_without.max()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_broken_logits_are_an_error(bad):
    scores = logits(rows=2)
    scores[1, 17] = bad
    with pytest.raises(RequestError, match="not finite") as caught:
        ours.sample(scores, [ours.Row(SamplingParams(), 0)] * 2)
    assert "fp32" in caught.value.hint
