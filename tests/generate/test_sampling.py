"""Bias, masks, penalties and filters against transformers' own processors."""

from __future__ import annotations

import numpy as np
import pytest

from qeff.generate import SamplingParams
from qeff.generate.sampling import Row, filters
from qeff.generate.sampling.adjust import adjust
from qeff.generate.sampling.warp import warp

torch = pytest.importorskip("torch")
theirs = pytest.importorskip("transformers.generation.logits_process")

SMALL, LARGE = 211, 20_011  # a large one is told apart by groups before anything is sorted


def logits(vocab=SMALL, scale=3.0, seed=0):
    values = np.random.default_rng(seed).standard_normal(vocab) * scale
    return values.astype(np.float32)


def hf(processor, scores, history=(0,)):
    return processor(torch.tensor([list(history)]), torch.tensor(scores)[None])[0].numpy()


def kept(filtered):
    """The places that a processor left."""
    return np.flatnonzero(filtered > -np.inf)


def relative(scores):
    scores = scores - scores.max()
    return scores, np.exp(scores)


@pytest.mark.parametrize("vocab", [SMALL, LARGE])
@pytest.mark.parametrize("k", [1, 2, 50, SMALL, 1000, LARGE, 10**6])
def test_top_k(k, vocab):
    scores = logits(vocab)
    expected = kept(hf(theirs.TopKLogitsWarper(k), scores))
    np.testing.assert_array_equal(filters.keep_top_k(scores, k), expected)


@pytest.mark.parametrize("vocab", [SMALL, LARGE])
@pytest.mark.parametrize("scale", [0.01, 0.2, 3.0, 20.0])
@pytest.mark.parametrize("p", [1e-6, 0.1, 0.5, 0.9, 0.999])
def test_top_p(p, scale, vocab):
    scores = logits(vocab, scale).astype(np.float64)  # theirs sums in the type of its input
    expected = kept(hf(theirs.TopPLogitsWarper(p), scores))
    found = filters.keep_top_p(*relative(scores.astype(np.float32)), p)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("vocab", [SMALL, LARGE])
@pytest.mark.parametrize("scale", [0.01, 0.2, 3.0, 20.0])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, 0.999])
def test_typical(p, scale, vocab):
    scores = logits(vocab, scale)
    expected = kept(hf(theirs.TypicalLogitsWarper(p), scores.astype(np.float64)))
    found = filters.keep_typical(*relative(scores), p)
    # Where hundreds are within a rounding error of the last one, a few can differ.
    differ = np.setxor1d(found, expected)
    assert len(differ) <= len(expected) // 1000, differ


@pytest.mark.parametrize("vocab", [SMALL, LARGE])
@pytest.mark.parametrize("p", [1e-4, 0.05, 0.5, 1.0])
def test_min_p(p, vocab):
    scores = logits(vocab)
    expected = kept(hf(theirs.MinPLogitsWarper(p), scores))
    np.testing.assert_array_equal(filters.keep_min_p(scores, p), expected)


@pytest.mark.parametrize("vocab", [SMALL, LARGE])
def test_filters_do_not_see_what_may_not_come(vocab):
    scores = logits(vocab)
    removed = np.random.default_rng(1).choice(vocab, vocab // 3, replace=False)
    remaining = np.setdiff1d(np.arange(vocab), removed)
    masked = scores.copy()
    masked[removed] = -np.inf
    for keep, setting in ((filters.keep_typical, 0.8), (filters.keep_top_p, 0.8)):
        found = keep(*relative(masked), setting)
        expected = remaining[keep(*relative(scores[remaining]), setting)]
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("count", [10, 5000])
def test_equal_scores_remain_or_go_together(count):
    scores = np.zeros(count, np.float32)
    for found in (
        filters.keep_top_k(scores, 3),
        filters.keep_top_p(scores, np.exp(scores), 0.3),
        filters.keep_typical(scores, np.exp(scores), 0.3),
        filters.keep_min_p(scores, 0.9),
    ):
        np.testing.assert_array_equal(found, np.arange(count))


@pytest.mark.parametrize("penalty", [0.7, 1.3])
def test_repetition_penalty(penalty):
    scores = logits()
    history = [3, 5, 3, 3, 100, 210]
    expected = hf(theirs.RepetitionPenaltyLogitsProcessor(penalty), scores, history)
    row = Row(SamplingParams(repetition_penalty=penalty), 0, history[:4], history[4:])
    before = scores.copy()
    np.testing.assert_allclose(adjust(scores, row), expected, rtol=1e-6)
    np.testing.assert_array_equal(scores, before)  # the session's logits are not touched


def test_presence_and_frequency_penalties_count_the_output_only():
    scores = logits()
    params = SamplingParams(presence_penalty=0.5, frequency_penalty=-0.25)
    found = adjust(scores, Row(params, 0, prompt=[1, 2], output=[7, 9, 7, 7]))
    expected = scores.copy()
    expected[7] -= 0.5 - 0.25 * 3
    expected[9] -= 0.5 - 0.25
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_logit_bias():
    scores = logits()
    bias = {7: 2.5, 3: -100.0, 200: 0.125}
    processor = theirs.SequenceBiasLogitsProcessor({(t,): float(b) for t, b in bias.items()})
    found = adjust(scores, Row(SamplingParams(logit_bias=bias), 0))
    np.testing.assert_allclose(found, hf(processor, scores), rtol=1e-6)


@pytest.mark.parametrize("split", range(6))
def test_bad_words(split):
    scores = logits()
    history = [3, 5, 9, 5, 9]
    words = [[4], [5, 9, 11], [9, 9, 12], [9, 13], [3, 5, 9, 5, 9, 14], [1, 3, 5, 9, 5, 9, 15]]
    expected = hf(theirs.NoBadWordsLogitsProcessor(words, None), scores, history)
    assert set(np.flatnonzero(expected == -np.inf)) == {4, 11, 13, 14}
    row = Row(SamplingParams(bad_token_ids=words), 0, history[:split], history[split:])
    np.testing.assert_array_equal(adjust(scores, row), expected)


def test_forbidden_tokens():
    scores = logits()
    expected = hf(theirs.SuppressTokensLogitsProcessor([3, 210], device="cpu"), scores)
    row = Row(SamplingParams(), 0, forbidden=(3, 210))
    np.testing.assert_array_equal(adjust(scores, row), expected)


@pytest.mark.parametrize("vocab", [64, 65, 95, 96, SMALL])
def test_allowed_mask(vocab):
    scores = logits(vocab)
    may_come = np.random.default_rng(vocab).random(vocab) < 0.3
    processor = theirs.PrefixConstrainedLogitsProcessor(
        lambda batch, ids: np.flatnonzero(may_come).tolist(), 1
    )
    words = np.full(-(-vocab // 32), -1, np.int32)  # bits beyond the vocabulary mean nothing
    for token in np.flatnonzero(~may_come):
        words[token // 32] &= ~np.int32(np.uint32(1 << token % 32).astype(np.int32))
    found = adjust(scores, Row(SamplingParams(), 0, allowed=words))
    np.testing.assert_array_equal(found, hf(processor, scores))


def test_tokens_beyond_the_mask_may_not_come():
    scores = logits(100)
    found = adjust(scores, Row(SamplingParams(), 0, allowed=np.full(2, -1, np.int32)))
    np.testing.assert_array_equal(found[:64], scores[:64])
    assert np.all(found[64:] == -np.inf)


@pytest.mark.parametrize("vocab", [SMALL, LARGE])
@pytest.mark.parametrize("seed", range(8))
def test_the_whole_chain(seed, vocab):
    history = np.random.default_rng(seed).integers(0, vocab, 40).tolist()
    words = [[history[-1], 5], [7]]
    chain = (
        theirs.SequenceBiasLogitsProcessor({(3,): 4.0, (history[0],): -2.0}),
        theirs.NoBadWordsLogitsProcessor(words, None),
        theirs.SuppressTokensLogitsProcessor([9], device="cpu"),
        theirs.RepetitionPenaltyLogitsProcessor(1.2),
        theirs.TemperatureLogitsWarper(0.7),
        theirs.TopKLogitsWarper(vocab // 2),
        theirs.TypicalLogitsWarper(0.95),
        theirs.TopPLogitsWarper(0.9),
        theirs.MinPLogitsWarper(0.02),
    )
    scores = logits(vocab, 2.0, seed)
    expected = scores
    for processor in chain:
        expected = hf(processor, expected, history)
    params = SamplingParams(
        logit_bias={3: 4.0, history[0]: -2.0},
        bad_token_ids=words,
        repetition_penalty=1.2,
        temperature=0.7,
        top_k=vocab // 2,
        typical_p=0.95,
        top_p=0.9,
        min_p=0.02,
    )
    found = warp(adjust(scores, Row(params, 0, history[:30], history[30:], (9,))), params)
    np.testing.assert_array_equal(found.tokens, kept(expected))
    shares = torch.tensor(expected).softmax(-1).numpy()[found.tokens]
    np.testing.assert_allclose(found.weights / found.weights.sum(), shares, rtol=1e-4)
