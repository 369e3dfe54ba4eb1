"""A layer that runs on the requested rows alone gives the bits that it gives on every token.

One decoder gathers rows behind its last layer, the other in front of its last queries; steps of
several sequences, rows in any order and trees are run on both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_folder import open_folder
from tiny_decoder import write_decoder

from qeff.backends.cpu.session import NativeSession
from qeff.core.errors import QeffError
from qeff.runtime.session import Batch, Span

CASES = [("f32", "fp32"), ("q4_0", "fp16"), ("q8_0", "mxint8")]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(case))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """A session on every token, and sessions on rows with one and several threads."""
    folder = tmp_path_factory.mktemp("rows")
    plain, by_row = (
        write_decoder(folder / str(flag), *request.param, by_row=flag) for flag in (False, True)
    )
    opened = [open_folder(plain), open_folder(by_row), open_folder(by_row, 3)]
    for session in opened:
        session.reserve(12)
    yield opened
    for session in opened:
        session.close()


def run(session: NativeSession, batch: Batch) -> np.ndarray:
    return session.step(batch).logits.view(np.uint32)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    lens=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=4),
    num_rows=st.integers(0, 12),
    seed=st.integers(0, 2**16),
)
def test_rows_in_any_order(pair: list[NativeSession], lens: list, num_rows: int, seed: int) -> None:
    draws = np.random.default_rng(seed)
    blocks = draws.permutation(12).reshape(4, 3).tolist()
    done = [0] * len(lens)
    for part in range(2):
        counts = [pieces[part] for pieces in lens]
        ends = np.cumsum(counts)
        tokens = draws.integers(0, 96, ends[-1])
        positions = np.concatenate([np.arange(d, d + n) for d, n in zip(done, counts, strict=True)])
        spans = tuple(
            Span(int(end - n), int(end), tuple(table[: -(-(d + n) // 32)]))
            for end, n, d, table in zip(ends, counts, done, blocks, strict=False)
        )
        # Some neighbours, some repeated, in no order.
        rows = draws.integers(0, ends[-1], num_rows)
        rows = np.concatenate([rows, np.arange(ends[0])]) if seed % 2 else rows
        batch = Batch(tokens, positions, spans, rows)
        expected = run(pair[0], batch)
        for session in pair[1:]:
            assert np.array_equal(run(session, batch), expected)
        done = [d + n for d, n in zip(done, counts, strict=True)]


def test_rows_of_a_tree(pair: list[NativeSession]) -> None:
    """Beside a prompt whose end alone is wanted."""
    prompt = np.arange(29) % 96
    whole = Batch(prompt, np.arange(29), (Span(0, 29, (4, 5)),), np.array([28]))
    tokens = np.concatenate([np.arange(20), [5, 7, 9, 11, 40, 41]])
    parents = np.concatenate([np.arange(20) - 1, [-1, -1, 20, 22, 22, 24]])
    positions = np.concatenate([np.arange(20), [29, 29, 30, 31, 31, 32]])
    spans = (Span(0, 20, (8,)), Span(20, 26, (4, 5)))
    for rows in ([19, 20, 21, 22, 23, 24, 25], [25, 19, 21, 20], [24]):
        batch = Batch(tokens, positions, spans, np.array(rows), parents)
        results = []
        for session in pair:
            session.step(whole)
            results.append(run(session, batch))
        assert all(np.array_equal(result, results[0]) for result in results[1:])


def test_what_no_row_asks_for_is_not_run(pair: list[NativeSession]) -> None:
    """A chunk inside a prompt writes keys and values; the last layer's products do not run."""
    session = pair[1]
    session.profile(True)
    batch = Batch(np.arange(64), np.arange(64), (Span(0, 64, (0, 1)),), np.zeros(0, np.int64))
    session.step(batch)
    phases = session.take_profile()
    session.profile(False)
    # Ops are named by their kind and place; some have a phase with others of their layer.
    places = [([int(re.sub(r"\D", "", name) or 0) for _, name in ops], t) for ops, t in phases]
    first, last = sorted(
        {int(name.removeprefix(kind)) for ops, _ in phases for kind, name in ops
         if kind == "attention"}
    )  # fmt: skip
    below = sum(time for ops, time in places if all(first < place < last for place in ops))
    behind = sum(time for ops, time in places if all(place > last for place in ops))
    assert behind * 5 < below


def _lie(program: dict) -> None:
    op = [op for op in program["ops"] if op[0] == "attention"][-1]
    op[4]["by_row"] = False


def _rows_as_keys(program: dict) -> None:
    op = [op for op in program["ops"] if op[0] == "attention"][-1]
    op[2][1] = op[2][0]


@pytest.mark.parametrize(
    ("change", "reason"), [(_lie, "by_row"), (_rows_as_keys, "of rows, not of tokens")]
)
def test_a_damaged_program_is_refused(
    change: Callable[[dict], None], reason: str, tmp_path: Path
) -> None:
    folder = write_decoder(tmp_path, "f32", "fp32", by_row=True)
    file = folder / "program.json"
    program = json.loads(file.read_text())
    change(program)
    file.write_text(json.dumps(program))
    with pytest.raises(QeffError, match=reason):
        open_folder(folder)
