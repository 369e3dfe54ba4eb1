"""Sampling settings and requests are checked when they are made."""

from __future__ import annotations

import numpy as np
import pytest

from qeff.core.errors import OptionTypeError, OptionValueError, RequestError
from qeff.generate import Request, SamplingParams


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
    ],
)
def test_values_of_the_wrong_type(name, value):
    with pytest.raises(OptionTypeError, match=name):
        SamplingParams(**{name: value})


def test_settings_that_exclude_each_other():
    with pytest.raises(OptionValueError, match="min_tokens 5 is larger than max_tokens 4"):
        SamplingParams(min_tokens=5, max_tokens=4)


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
