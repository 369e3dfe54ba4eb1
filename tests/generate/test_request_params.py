"""Sampling settings and requests are checked when they are made."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from qeff.core.errors import OptionTypeError, OptionValueError, RequestError
from qeff.generate import FinishReason, Request, Result, SamplingParams
from qeff.generate.request import Timings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("min_tokens", -1),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("min_p", 1.5),
        ("repetition_penalty", 0),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -3),
        ("seed", -1),
        ("seed", 2**64),
        ("stop", ("a", "")),
        ("stop_token_ids", (-1,)),
        ("typical_p", 0.0),
        ("typical_p", 1.5),
        ("logit_bias", {5: 101.0}),
        ("logit_bias", {5: float("-inf")}),
        ("logit_bias", {-5: 1.0}),
        ("logit_bias", [(5, 1.0), (5, 2.0)]),
        ("bad_words", ""),
        ("bad_token_ids", [[]]),
        ("bad_token_ids", [[3, -1]]),
        ("n", 0),
        ("best_of", 0),
        ("logprobs", -1),
        ("prompt_logprobs", -1),
        ("beam_width", -1),
        ("length_penalty", float("nan")),
    ],
)
def test_values_out_of_range(name, value):
    with pytest.raises(OptionValueError, match=name):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("temperature", "hot"),
        ("temperature", None),
        ("top_k", 2.0),
        ("seed", "7"),
        ("stop", (1,)),
        ("stop_token_ids", ("a",)),
        ("stop_token_ids", "a"),
        ("ignore_eos", 1),
        ("stop", 5),
        ("typical_p", "a"),
        ("logit_bias", "a"),
        ("logit_bias", 5),
        ("logit_bias", [5]),
        ("logit_bias", {"a": 1.0}),
        ("logit_bias", {5: "a"}),
        ("bad_words", (5,)),
        ("bad_token_ids", "a"),
        ("bad_token_ids", 5),
        ("bad_token_ids", [5]),
        ("bad_token_ids", ["a"]),
        ("n", 1.0),
        ("best_of", "2"),
        ("logprobs", True),
        ("prompt_logprobs", 0.5),
        ("beam_width", 2.0),
        ("length_penalty", "long"),
        ("early_stopping", "never"),
    ],
)
def test_values_of_the_wrong_type(name, value):
    with pytest.raises(OptionTypeError, match=name):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("given", "sentence", "hint"),
    [
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens 5 is larger than max_tokens 4", None),
        ({"n": 3, "best_of": 2, "temperature": 1.0}, "best_of 2 is smaller than n 3", None),
        ({"n": 2}, "n 2 at temperature 0", "raise the temperature"),
        ({"best_of": 2}, "best_of 2 at temperature 0", "raise the temperature"),
        ({"length_penalty": 2.0}, "length_penalty is a setting of beam search", "beam_width"),
        ({"early_stopping": True}, "early_stopping is a setting of beam search", "beam_width"),
        ({"beam_width": 4, "temperature": 0.5}, "beam search does not sample", "at 0"),
        ({"beam_width": 4, "best_of": 4}, "best_of and beam_width exclude each other", "n best"),
        ({"beam_width": 4, "n": 5}, "n 5 is larger than beam_width 4", "raise beam_width"),
    ],
)
def test_settings_that_exclude_each_other(given, sentence, hint):
    with pytest.raises(OptionValueError, match=sentence) as caught:
        SamplingParams(**given)
    assert caught.value.hint is hint is None or hint in caught.value.hint


def test_settings_that_go_together():
    SamplingParams(n=2, best_of=3, temperature=0.1, logprobs=5)
    SamplingParams(beam_width=4, n=4, length_penalty=-1.0, early_stopping=True, logprobs=2)
    SamplingParams(beam_width=4, logit_bias={3: 1.0}, repetition_penalty=1.1)


def test_biases_are_kept_as_sorted_pairs():
    expected = ((2, -1.0), (9, 0.5))
    assert SamplingParams(logit_bias={9: 0.5, 2: -1}).logit_bias == expected
    assert SamplingParams(logit_bias=[(np.int64(9), 0.5), [2, -1]]).logit_bias == expected
    once = SamplingParams(logit_bias={9: 0.5, 2: -1})
    assert replace(once, temperature=1.0).logit_bias == expected
    assert hash(once) == hash(SamplingParams(logit_bias=expected)) and once == replace(once)


def test_bad_words_are_kept_as_tuples():
    params = SamplingParams(bad_words="x", bad_token_ids=[np.array([3, 4]), [5]])
    assert params.bad_words == ("x",) and params.bad_token_ids == ((3, 4), (5,))
    both = replace(params, logit_bias={8: 1.0}, stop_token_ids=[7])
    assert sorted(both.named_token_ids()) == [3, 4, 5, 7, 8]


@pytest.mark.parametrize(
    ("given", "is_adjusted", "needs_logprobs", "num_choices"),
    [
        ({}, False, False, 1),
        ({"temperature": 1.0, "top_k": 3, "seed": 1}, False, False, 1),
        ({"temperature": 1.0, "n": 3}, False, False, 3),
        ({"temperature": 1.0, "n": 3, "best_of": 4}, False, True, 4),
        ({"logprobs": 0}, False, True, 1),
        ({"bad_token_ids": [[3]]}, True, False, 1),
        ({"logit_bias": {3: 1.0}}, True, False, 1),
        ({"presence_penalty": -1.0}, True, False, 1),
    ],
)
def test_what_follows_from_settings(given, is_adjusted, needs_logprobs, num_choices):
    params = SamplingParams(**given)
    assert params.has_adjustments is is_adjusted
    assert params.needs_logprobs is needs_logprobs
    assert params.num_choices == num_choices
    assert params.is_plain is (params.is_greedy and not is_adjusted and not needs_logprobs)


def test_a_single_stop_string_is_one_string():
    assert SamplingParams(stop="END").stop == ("END",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")


def test_requests_take_any_whole_numbers():
    request = Request(np.array([3, 4]))
    assert request.prompt == (3, 4) and all(type(token) is int for token in request.prompt)
    assert request.id != Request((3, 4)).id
    with pytest.raises(RequestError, match="empty"):
        Request(())
    with pytest.raises(OptionTypeError, match="not text"):
        Request("text")
    with pytest.raises(OptionTypeError, match="whole numbers"):
        Request([1.5])
    with pytest.raises(OptionTypeError, match="priority"):
        Request((1,), priority=0.5)
    with pytest.raises(OptionTypeError, match="cache_salt"):
        Request((1,), cache_salt=7)
    request = Request((1,), priority=-3, cache_salt="tenant")
    assert (request.priority, request.cache_salt, request.constraint) == (-3, "tenant", None)


def test_what_a_result_says_of_speculation():
    result = Result("a", (1,), (2, 3), "", FinishReason.LENGTH, Timings())
    assert result.acceptance == 0 and result.logprobs is None and result.alternatives == ()
    assert replace(result, num_drafted=8, num_accepted=6).acceptance == 0.75
