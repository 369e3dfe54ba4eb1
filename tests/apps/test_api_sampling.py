"""Sampling settings of the Python class: for all prompts, or one value for each."""

from __future__ import annotations

import numpy as np
import pytest

from qeff.apps.sampling import params_for
from qeff.core.errors import QeffError
from qeff.generate import SamplingParams


def test_greedy_without_settings() -> None:
    assert params_for(2, None, {}, 5) == [SamplingParams(max_tokens=5)] * 2


def test_single_settings_win_over_the_object() -> None:
    (got,) = params_for(1, SamplingParams(temperature=1.0, top_k=5), {"top_k": 7}, None)
    assert (got.temperature, got.top_k) == (1.0, 7)


def test_arrays_hold_a_value_for_each_prompt() -> None:
    given = {"temperatures": np.array([[0.5], [2.0]]), "top_ks": [[3], [4]], "seed": 9}
    first, second = params_for(2, given, {}, None)
    assert (first.temperature, first.top_k, first.seed) == (0.5, 3, 9)
    assert (second.temperature, second.top_k, second.seed) == (2.0, 4, 9)
    assert [p.top_p for p in params_for(3, {"top_ps": [0.5]}, {}, None)] == [0.5] * 3


@pytest.mark.parametrize(
    ("given", "options", "error"),
    [
        ({"temperatures": [1.0, 2.0, 3.0]}, {}, ValueError),
        ({"temperatures": ["0.5", "hot"]}, {}, TypeError),
        ({"top_ks": [None, 2]}, {}, TypeError),
        ({"top_ks": [1.5, 2.0]}, {}, TypeError),
        ({"random_numbers": [1.0]}, {}, NotImplementedError),
        ({"temprature": 1.0}, {}, TypeError),
        (3, {}, TypeError),
        (None, {"write_io": True}, NotImplementedError),
        (None, {"iteration": 2}, NotImplementedError),
        (None, {"top_q": 2}, TypeError),
    ],
)
def test_refused(given, options, error) -> None:
    with pytest.raises(error) as caught:
        params_for(2, given, options, None)
    assert isinstance(caught.value, QeffError)


def test_documented_keywords_that_need_nothing() -> None:
    options = {"automation": True, "include_sampler": True, "write_io": False, "iteration": 1}
    assert params_for(1, None, options, None) == [SamplingParams()]
