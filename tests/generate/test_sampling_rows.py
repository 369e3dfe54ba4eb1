"""A row's choice depends on its logits and itself alone, and log-probabilities are the model's."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qeff.core.errors import RequestError
from qeff.generate import SamplingParams
from qeff.generate.sampling import History, OutputView, Row, SampleError, expand, sample, score
from qeff.generate.sampling.adjust import adjust

VOCAB = 5003  # odd, so that rows begin at every alignment; large enough for every path

tokens = st.integers(0, VOCAB - 1)
runs = st.lists(tokens, max_size=12)


@st.composite
def some_params(draw):
    def one(strategy, off):
        return draw(st.one_of(st.just(off), strategy))

    return SamplingParams(
        temperature=one(st.floats(0.05, 5), 0.0),
        top_k=one(st.integers(1, 2000), 0),
        top_p=one(st.floats(0.01, 0.99), 1.0),
        min_p=one(st.floats(0.001, 1), 0.0),
        typical_p=one(st.floats(0.05, 0.99), 1.0),
        repetition_penalty=one(st.floats(0.5, 2), 1.0),
        presence_penalty=one(st.floats(-2, 2), 0.0),
        frequency_penalty=one(st.floats(-2, 2), 0.0),
        logit_bias=one(st.dictionaries(tokens, st.floats(-100, 100), max_size=4), {}),
        bad_token_ids=one(st.lists(st.lists(tokens, min_size=1, max_size=2), max_size=4), ()),
        logprobs=one(st.integers(0, 20), None),
    )


@st.composite
def some_rows(draw):
    allowed = None
    if draw(st.booleans()):
        generator = np.random.default_rng(draw(st.integers(0, 99)))
        allowed = generator.integers(-(2**31), 2**31, -(-VOCAB // 32)).astype(np.int32)
    return Row(
        draw(some_params()),
        draw(st.integers(0, 2**70)),
        draw(runs),
        draw(runs),
        draw(st.lists(tokens, max_size=3)),
        allowed,
    )


def logits(rows, seed=0, scale=3.0, vocab=VOCAB):
    values = np.random.default_rng(seed).standard_normal((rows, vocab)) * scale
    return values.astype(np.float32)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(some_rows(), min_size=2, max_size=6),
    cuts=st.sets(st.integers(1, 5)),
    seed=st.integers(0, 999),
    scale=st.sampled_from([0.3, 3.0, 10.0]),
    randomness=st.randoms(use_true_random=False),
)
def test_any_split_and_order_gives_the_same_choices(rows, cuts, seed, scale, randomness):
    scores = logits(len(rows), seed, scale)
    together = sample(scores, rows)
    edges = [0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]
    pieces = [
        choice
        for first, stop in pairwise(edges)
        for choice in sample(scores[first:stop], rows[first:stop])
    ]
    assert pieces == together  # tokens, log-probabilities and lists of the likeliest, bit for bit
    order = list(range(len(rows)))
    randomness.shuffle(order)
    shuffled = sample(scores[order], [rows[index] for index in order])
    assert shuffled == [together[index] for index in order]


@settings(max_examples=100, deadline=None)
@given(row=some_rows(), drafted=runs, seed=st.integers(0, 99))
def test_a_kept_history_changes_nothing(row, drafted, seed):
    kept = History(row.params, row.prompt)
    for token in row.output:
        kept.push(token)
    sequence = [*row.prompt, *row.output]
    view = OutputView(sequence, len(row.prompt), drafted)
    whole = [*row.output, *drafted]
    plain = Row(row.params, row.seed, row.prompt, whole, row.forbidden, row.allowed)
    quick = Row(row.params, row.seed, row.prompt, view, row.forbidden, row.allowed, kept)
    scores = logits(1, seed)
    np.testing.assert_array_equal(adjust(scores[0], quick), adjust(scores[0], plain))
    assert sample(scores, [quick]) == sample(scores, [plain])


def test_a_history_grows_as_far_as_needed():
    params = SamplingParams(frequency_penalty=1.0)
    kept = History(params, range(100))
    for token in range(50, 1000):
        kept.push(token)
    found, counts = kept.counts([999, 5, 2000, 2000])
    expected = dict.fromkeys(range(50), 0) | dict.fromkeys(range(50, 1000), 1)
    expected |= {999: 2, 5: 1, 2000: 2}
    assert dict(zip(found.tolist(), counts.tolist(), strict=True)) == expected
    assert kept.num_output == 950
    assert len(kept.counts()[0]) == 1000  # guessed tokens leave nothing behind


@given(known=runs, start=st.integers(0, 5), drafted=runs, data=st.data())
def test_a_view_reads_like_a_list(known, start, drafted, data):
    start = min(start, len(known))
    expected = known[start:] + drafted
    view = OutputView(known, start, drafted)
    assert list(view) == expected and len(view) == len(expected)
    first, stop, step = data.draw(st.tuples(*[st.none() | st.integers(-15, 15)] * 2, st.none()))
    assert view[first:stop:step] == expected[first:stop:step]
    for index in range(-len(expected), len(expected)):
        assert view[index] == expected[index]
    with pytest.raises(IndexError):
        view[len(expected)]


def test_logprobs_are_of_the_models_own_distribution():
    torch = pytest.importorskip("torch")
    scores = logits(4)
    settings = (
        SamplingParams(logprobs=5),
        SamplingParams(logprobs=0, temperature=2.0, top_k=50, seed=1),
        SamplingParams(logprobs=5, logit_bias={17: 100.0}, repetition_penalty=1.5),
        SamplingParams(),
    )
    rows = [Row(params, 1, prompt=[3]) for params in settings]
    found = sample(scores, rows)
    expected = torch.tensor(scores).double().log_softmax(-1)
    for index, choice in enumerate(found[:3]):
        assert choice.logprob == pytest.approx(float(expected[index, choice.token]), abs=1e-5)
        best = torch.topk(expected[index], settings[index].logprobs)
        assert [token for token, _ in choice.top] == best.indices.tolist()
        np.testing.assert_allclose([value for _, value in choice.top], best.values, atol=1e-5)
    assert found[2].token == 17
    assert found[3] == (int(scores[3].argmax()), None, ())


def test_scores_of_given_tokens():
    torch = pytest.importorskip("torch")
    scores, given_tokens = logits(3), [5, 17, 5002]
    expected = torch.tensor(scores).double().log_softmax(-1)
    for index, choice in enumerate(score(scores, given_tokens, 2)):
        assert choice.token == given_tokens[index]
        assert choice.logprob == pytest.approx(float(expected[index, choice.token]), abs=1e-5)
        assert [token for token, _ in choice.top] == torch.topk(expected[index], 2)[1].tolist()
    assert score(scores, given_tokens)[0].top == ()


def test_equally_likely_tokens_are_listed_in_their_order():
    scores = np.zeros((1, VOCAB), np.float32)
    scores[0, 4000] = 1
    (choice,) = score(scores, [0], 4)
    assert [token for token, _ in choice.top] == [4000, 0, 1, 2]
    assert len(score(scores[:, :3], [0], 20)[0].top) == 3


def test_best_of_needs_logprobs_to_choose_by():
    params = SamplingParams(n=2, best_of=3, temperature=1.0)
    (choice,) = sample(logits(1), [Row(params, 0)])
    assert choice.logprob is not None and choice.top == ()


def test_tokens_that_a_beam_goes_on_with():
    scores = logits(2)
    best = np.argsort(-scores[0])[:4]
    allowed = np.zeros(-(-VOCAB // 32), np.int32)
    allowed[0] = 0b110
    rows = [
        Row(SamplingParams(bad_token_ids=[[best[1]]]), 0),
        Row(SamplingParams(), 0, allowed=allowed),
    ]
    first, second = expand(scores, rows, 3)
    wanted = [best[0], best[2], best[3]]
    own = score(scores[[0, 0, 0]], wanted)
    assert [choice for _, choice in first] == own
    assert [value for value, _ in first] == [choice.logprob for choice in own]
    assert {choice.token for _, choice in second} == {1, 2}  # fewer where fewer may come


def test_a_beam_is_led_by_what_was_adjusted_and_tells_what_the_model_thought():
    scores = logits(1)
    best = int(scores[0].argmax())
    row = Row(SamplingParams(logit_bias={best: -2.0}, logprobs=3), 0)
    (found,) = expand(scores, [row], VOCAB)
    ((value, choice),) = [one for one in found if one[1].token == best]
    assert [choice] == score(scores, [best], 3)
    assert value == pytest.approx(choice.logprob - 2.0, abs=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1e-38, 1e-3])
def test_a_temperature_near_zero_is_greedy(temperature):
    scores = logits(8, scale=30.0)
    rows = [Row(SamplingParams(temperature=temperature), seed) for seed in range(8)]
    assert [choice.token for choice in sample(scores, rows)] == scores.argmax(-1).tolist()


def test_a_huge_temperature_is_uniform():
    rows = [Row(SamplingParams(temperature=1e300), seed) for seed in range(400)]
    found = [choice.token for choice in sample(logits(400, vocab=2), rows)]
    assert 140 < sum(found) < 260


def test_half_precision_logits_are_taken():
    scores = logits(3).astype(np.float16)
    rows = [Row(SamplingParams(temperature=1.0, logprobs=1), seed) for seed in range(3)]
    assert sample(scores, rows) == sample(scores.astype(np.float32), rows)
    assert sample(scores[:0], []) == []


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1.0, top_p=0.5)])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_broken_logits_are_an_error_of_their_row(bad, params):
    scores = logits(4)
    scores[1, 17] = bad
    scores[3] = -np.inf
    with pytest.raises(SampleError, match="not finite") as caught:
        sample(scores, [Row(params, 0)] * 4)
    assert isinstance(caught.value, RequestError)
    assert "fp32" in caught.value.hint
    assert list(caught.value.by_row) == [1, 3]


def test_a_row_that_allows_nothing_is_an_error_of_its_row():
    nothing = np.zeros(-(-VOCAB // 32), np.int32)
    rows = [Row(SamplingParams(), 0), Row(SamplingParams(temperature=1.0), 0, allowed=nothing)]
    with pytest.raises(SampleError, match="no token may come") as caught:
        sample(logits(2), rows)
    assert list(caught.value.by_row) == [1]
    assert "constraint" in caught.value.hint
