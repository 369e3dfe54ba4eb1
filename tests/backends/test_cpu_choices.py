"""Tokens that the native engine chooses, beside those that numpy chooses from the same logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from native_folder import open_folder, write_folder

from qeff.backends.cpu.session import NativeSession
from qeff.container.program import Op, Program, Value
from qeff.core.errors import RequestError
from qeff.generate import SamplingParams
from qeff.generate.sampling import Row, sample, uniform
from qeff.generate.sampling.warp import warp
from qeff.runtime.session import CHOICE, NO_CHOICE, Batch, Span

NUM_ROWS, VOCAB = 24, 3001
NUM_SEEDS = 40
SETTINGS = [
    SamplingParams(),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.3),
    SamplingParams(temperature=100.0),
    SamplingParams(temperature=1e-30),
    SamplingParams(temperature=1.0, top_k=1),
    SamplingParams(temperature=1.0, top_k=5),
    SamplingParams(temperature=1.0, top_k=400),
    SamplingParams(temperature=1.0, top_k=VOCAB + 5),
    SamplingParams(temperature=1.0, top_p=1e-6),
    SamplingParams(temperature=0.8, top_p=0.9),
    SamplingParams(temperature=1.5, top_p=0.999),
    SamplingParams(temperature=1.0, min_p=0.05),
    SamplingParams(temperature=1.0, min_p=1.0),
    SamplingParams(temperature=0.7, top_k=40, top_p=0.95, min_p=0.02),
]


def rows_of_logits() -> np.ndarray:
    """Peaked, flat, with ties, with masked tokens, with the largest first and last."""
    draws = np.random.default_rng(3)
    rows = draws.standard_normal((NUM_ROWS, VOCAB)).astype(np.float32)
    rows *= np.linspace(0.01, 8, NUM_ROWS, dtype=np.float32)[:, None]
    rows[1] = 2.5
    rows[2] = np.round(rows[-1])
    rows[3, ::2] = -np.inf
    rows[4, 1:] = -np.inf
    rows[5, 0] = rows[6, -1] = 40
    rows[7] += 1e5
    return rows


@pytest.fixture(scope="module")
def logits() -> np.ndarray:
    return rows_of_logits()


def open_table(
    table: np.ndarray, folder: Path, threads: int, factor: np.ndarray | None = None
) -> NativeSession:
    """A session whose token t has row t of a table for its logits.

    A table holds finite numbers only: half of the logits, and what gives infinity when doubled.
    """
    if factor is None:
        factor = np.full(VOCAB, 2, np.float32)
    table = np.where(np.isinf(table), np.float32(-3e38), table / 2)
    program = Program(
        values=(
            Value("tokens", "token", (), "i64"),
            Value("positions", "token", (), "i64"),
            Value("table", "weight", table.shape, "f32"),
            Value("embedded", "token", (VOCAB,), "f32"),
            Value("rows", "row", (VOCAB,), "f32"),
            Value("factor", "weight", (VOCAB,), "f32"),
            Value("logits", "row", (VOCAB,), "f32"),
        ),
        ops=(
            Op("embed", "embed", (2, 0), (3,), {"offset": 0, "dtype": "f32"}),
            Op("gather_rows", "rows", (3,), (4,), {}),
            Op("binary", "double", (4, 5), (6,), {"function": "mul"}),
        ),
        caches=(),
        tokens=0,
        positions=1,
        logits=6,
    )
    weights = {"table": table, "factor": factor}
    session = open_folder(write_folder(folder, program, weights), threads)
    session.reserve(NUM_ROWS)
    return session


@pytest.fixture(scope="module", params=[1, 2])
def session(request, logits, tmp_path_factory):
    opened = open_table(logits, tmp_path_factory.mktemp("choices"), request.param)
    yield opened
    opened.close()


def step(session, tokens, choices):
    """One token each of as many sequences."""
    count = len(tokens)
    batch = Batch(
        tokens=np.asarray(tokens),
        positions=np.zeros(count, np.int64),
        spans=tuple(Span(i, i + 1, (i,)) for i in range(count)),
        logit_rows=np.arange(count),
        choices=choices,
    )
    return session.step(batch)


def choice(params: SamplingParams, seed: int, index: int):
    return (params.temperature, params.top_p, params.min_p, params.top_k, (seed, 0), index)


@pytest.mark.parametrize(
    "params",
    SETTINGS,
    ids=lambda params: f"{params.temperature}-{params.top_k}-{params.top_p}-{params.min_p}",
)
def test_tokens_are_those_of_numpy(session, logits, params) -> None:
    differing = 0
    for seed in range(NUM_SEEDS):
        choices = np.array([choice(params, seed, index) for index in range(NUM_ROWS)], CHOICE)
        output = step(session, np.arange(NUM_ROWS), choices)
        assert output.logits.shape == (0, VOCAB) and output.tokens is not None
        outputs = [Row(params, seed, output=[0] * index) for index in range(NUM_ROWS)]
        expected = [one.token for one in sample(logits, outputs)]
        for index, (found, right) in enumerate(zip(output.tokens.tolist(), expected, strict=True)):
            if found != right:
                assert_is_next_to(logits[index], params, uniform(seed, index), found, right)
                differing += 1
    assert differing <= 2, "the two should differ by rounding alone"


def assert_is_next_to(row, params, number, found, right) -> None:
    """The number lies at the border of two tokens, within what float32 can tell apart."""
    kept = warp(row, params)
    tokens = np.arange(len(row)) if kept.tokens is None else kept.tokens
    sums = np.cumsum(kept.weights, dtype=np.float64)
    place = {int(token): at for at, token in enumerate(tokens)}
    low, high = sorted((place[found], place[right]))
    border = sums[low] / sums[-1]
    assert sums[high - 1] - sums[low] <= 1e-6 * sums[-1], "tokens lie between the two"
    assert abs(border - number) < 1e-6


def test_rows_with_and_without_a_choice(session, logits) -> None:
    greedy = choice(SamplingParams(), 0, 0)
    choices = np.array([NO_CHOICE, greedy, greedy, NO_CHOICE, greedy], CHOICE)
    output = step(session, [9, 5, 6, 3, 0], choices)
    assert output.tokens.tolist() == [-1, 0, VOCAB - 1, -1, int(logits[0].argmax())]
    assert np.array_equal(output.logits, logits[[9, 3]])


def test_a_choice_does_not_depend_on_company(session) -> None:
    params = SamplingParams(temperature=0.9, top_p=0.9)
    choices = np.array([choice(params, 7, index) for index in range(NUM_ROWS)], CHOICE)
    together = step(session, np.arange(NUM_ROWS), choices).tokens
    alone = [step(session, [row], choices[row : row + 1]).tokens[0] for row in range(NUM_ROWS)]
    assert together.tolist() == alone


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_finite(bad, tmp_path) -> None:
    table, factor = np.ones((NUM_ROWS, VOCAB), np.float32), np.ones(VOCAB, np.float32)
    table[2, 2000] = 0 if np.isinf(bad) else 1
    factor[2000] = bad
    opened = open_table(table, tmp_path, 2, factor)
    sampled = choice(SamplingParams(temperature=1.0), 0, 0)
    choices = np.array([sampled, choice(SamplingParams(), 0, 0)], CHOICE)
    assert step(opened, [3, 3], choices).tokens.tolist() == [-1, -1]
    assert step(opened, [2, 2], choices).tokens.tolist() == [-1, -1]  # 0 · inf is no number either
    opened.close()


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": np.nan},
        {"temperature": np.inf},
        {"top_p": 0},
        {"top_p": 2},
        {"min_p": -1},
        {"top_k": -1},
    ],
)
def test_settings_out_of_range_are_refused(session, change) -> None:
    choices = np.array([choice(SamplingParams(temperature=1.0), 0, 0)], CHOICE)
    for name, value in change.items():
        choices[name] = value
    with pytest.raises(RequestError, match=r"out of range|not a number"):
        step(session, [0], choices)
