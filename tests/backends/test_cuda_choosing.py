"""Tokens that the CUDA engine chooses, beside those that numpy chooses from the same logits.

Without a GPU the kernels run in Triton's interpreter.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
pytest.importorskip("triton", reason="triton is not installed")

from qeff.backends.cuda.session.choosing import Chooser  # noqa: E402
from qeff.backends.cuda.session.kernels import choose as kernels  # noqa: E402
from qeff.generate import SamplingParams  # noqa: E402
from qeff.generate.sampling import Row, sample, uniform  # noqa: E402
from qeff.generate.sampling.warp import warp  # noqa: E402
from qeff.runtime.session import CHOICE, GREEDY, NO_CHOICE  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NUM_ROWS, VOCAB, LISTED = 8, 2001, 1024
SETTINGS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=100.0),
    SamplingParams(temperature=1e-30),
    SamplingParams(temperature=1.0, top_k=400),
    SamplingParams(temperature=1.0, top_k=VOCAB + 5),
    SamplingParams(temperature=1.0, top_p=1e-6),
    SamplingParams(temperature=0.8, top_p=0.9),
    SamplingParams(temperature=1.5, top_p=0.999),
    SamplingParams(temperature=1.0, min_p=0.05),
    SamplingParams(temperature=1.0, min_p=1.0),
    SamplingParams(temperature=0.7, top_k=40, top_p=0.95, min_p=0.02),
]


@pytest.fixture(scope="module")
def logits() -> np.ndarray:
    """Peaked, flat, with ties, with masked tokens, with the largest first and last."""
    draws = np.random.default_rng(3)
    rows = draws.standard_normal((NUM_ROWS, VOCAB)).astype(np.float32)
    rows *= np.linspace(0.01, 6, NUM_ROWS, dtype=np.float32)[:, None]
    rows[1] = 2.5  # more candidates than are copied together
    rows[2] = np.round(rows[-1])
    rows[3, ::2] = -np.inf
    rows[4, 1:] = -np.inf
    rows[5, 0] = rows[6, -1] = 40
    rows[7] += 1e5
    return rows


@pytest.fixture(scope="module")
def chooser() -> Chooser:
    return Chooser(NUM_ROWS + 3, VOCAB, DEVICE, LISTED)


def tokens_of(chooser: Chooser, logits: np.ndarray, choices: list, **how) -> list[int]:
    chooser.put(np.array(choices, CHOICE))
    return chooser.choose(torch.from_numpy(logits).to(DEVICE), **how).cpu().tolist()


def choice(params: SamplingParams, seed: int, index: int):
    return (params.temperature, params.top_p, params.min_p, params.top_k, (seed, 0), index)


@pytest.mark.parametrize("all_greedy", [True, False])
def test_the_first_of_the_largest_logits(chooser, logits, all_greedy) -> None:
    choices = [GREEDY] * NUM_ROWS
    choices[4] = NO_CHOICE
    expected = logits.argmax(1)
    expected[4] = -1
    assert tokens_of(chooser, logits, choices, all_greedy=all_greedy) == expected.tolist()


@pytest.mark.parametrize(
    "params",
    SETTINGS,
    ids=lambda params: f"{params.temperature}-{params.top_k}-{params.top_p}-{params.min_p}",
)
def test_tokens_are_those_of_numpy(chooser, logits, params) -> None:
    seed = 11
    found = tokens_of(chooser, logits, [choice(params, seed, index) for index in range(NUM_ROWS)])
    outputs = [Row(params, seed, output=[0] * index) for index in range(NUM_ROWS)]
    expected = [one.token for one in sample(logits, outputs)]
    for index, (token, right) in enumerate(zip(found, expected, strict=True)):
        if token != right:
            assert_is_next_to(logits[index], params, uniform(seed, index), token, right)
    assert sum(a != b for a, b in zip(found, expected, strict=True)) <= 1


def assert_is_next_to(row, params, number, found, right) -> None:
    """The number lies at the border of two tokens, within what float32 can tell apart."""
    kept = warp(row, params)
    tokens = np.arange(len(row)) if kept.tokens is None else kept.tokens
    sums = np.cumsum(kept.weights, dtype=np.float64)
    place = {int(token): at for at, token in enumerate(tokens)}
    low, high = sorted((place[found], place[right]))
    assert sums[high - 1] - sums[low] <= 1e-6 * sums[-1], "tokens lie between the two"
    assert abs(sums[low] / sums[-1] - number) < 1e-6


def test_a_choice_does_not_depend_on_company(chooser, logits) -> None:
    params = SamplingParams(temperature=0.9, top_p=0.9)
    choices = [choice(params, 7, index) for index in range(2)]
    together = tokens_of(chooser, logits[5:7], choices)
    alone = [tokens_of(chooser, logits[5 + at :][:1], [choices[at]])[0] for at in range(2)]
    assert together == alone


def test_sections_that_are_too_long_to_copy(chooser, logits) -> None:
    """Whole rows are read again, to the same end."""
    short = Chooser(2, VOCAB, DEVICE, listed=16)
    params = SamplingParams(temperature=1.0, top_k=400, top_p=0.8)
    choices = [choice(params, 5, index) for index in range(2)]
    rows = logits[[0, 3]]
    assert tokens_of(short, rows, choices) == tokens_of(chooser, rows, choices)


def test_without_filters_less_is_done(chooser, logits) -> None:
    choices = [choice(SETTINGS[0], 9, index) for index in range(NUM_ROWS)]
    found = tokens_of(chooser, logits, choices, is_filtered=False)
    assert found == tokens_of(chooser, logits, choices)


@pytest.mark.parametrize("key", [(0, 0), (2**64 - 1, 5), (0x123456789ABCDEF0, 2**63)])
def test_random_numbers_are_those_of_philox(chooser, key) -> None:
    """Of equal logits, the token is the number times the size."""
    indices = [0, 1, 2**63 + 3, 2**64 - 1]
    rows = np.zeros((len(indices), VOCAB), np.float32)
    found = tokens_of(chooser, rows, [(1.0, 1.0, 0.0, 0, key, index) for index in indices])
    for token, index in zip(found, indices, strict=True):
        counter = np.array([index, 0, 0, 0], np.uint64)
        bits = np.random.Philox(key=np.array(key, np.uint64), counter=counter)
        assert abs(token - int(bits.random_raw() / 2**64 * VOCAB)) <= 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("all_greedy", [True, False])
def test_logits_that_are_not_finite(chooser, bad, all_greedy) -> None:
    rows = np.ones((3, VOCAB), np.float32)
    rows[0, 2000] = bad
    rows[1] = -np.inf
    choices = [GREEDY] * 3
    if not all_greedy:
        choices[0] = choice(SamplingParams(temperature=1.0), 0, 0)
    assert tokens_of(chooser, rows, choices, all_greedy=all_greedy) == [-1, -1, 0]


def test_fields_lie_where_the_kernels_read_them() -> None:
    assert CHOICE.itemsize == 4 * kernels.WORDS == 8 * kernels.LONGS
    places = [CHOICE.fields[name][1] for name in ("temperature", "top_p", "min_p", "top_k")]
    assert places == [0, 4, 8, 12]
    assert (CHOICE.fields["key"][1], CHOICE.fields["index"][1]) == (16, 32)
