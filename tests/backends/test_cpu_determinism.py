"""The same token gives the same bits: alone, in any batch, in any chunks, with any threads.

Random requests are cut and mixed at random and compared with each one run alone, one token a step,
on one thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_folder import open_folder
from tiny_decoder import write_decoder

from qeff.backends.cpu.session import NativeSession
from qeff.runtime.session import Batch, Span

NUM_BLOCKS = 24
BLOCK_LEN = 32
FORMATS = ["f32", "f16", "q8_0", "q4_0", "q4_1", "q4_k", "q6_k", "mxfp4", "mxfp6", "mxfp8"]
CASES = [(form, "fp16") for form in FORMATS] + [("q4_0", "mxint8"), ("q4_0", "fp32")]


@dataclass
class Sequence:
    """A sequence on its way through a session."""

    tokens: np.ndarray
    blocks: tuple[int, ...]
    done: int = 0
    logits: list[np.ndarray] = field(default_factory=list)


def advance(session: NativeSession, parts: list[tuple[Sequence, int]]) -> None:
    """One step with some tokens of some sequences, all rows wanted."""
    tokens, positions, spans, start = [], [], [], 0
    for sequence, count in parts:
        stop = sequence.done + count
        tokens.append(sequence.tokens[sequence.done : stop])
        positions.append(np.arange(sequence.done, stop))
        used = sequence.blocks[: -(-stop // BLOCK_LEN)]
        spans.append(Span(start, start + count, used))
        start += count
    batch = Batch(np.concatenate(tokens), np.concatenate(positions), tuple(spans), np.arange(start))
    logits = session.step(batch).logits
    for (sequence, count), span in zip(parts, spans, strict=True):
        sequence.logits.append(logits[span.start : span.stop])
        sequence.done += count


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(case))
def sessions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    form, kv = request.param
    folder = write_decoder(tmp_path_factory.mktemp(form), form, kv)
    opened = [open_folder(folder, threads) for threads in (1, 2, 5)]
    for session in opened:
        session.reserve(NUM_BLOCKS)
    yield opened
    for session in opened:
        session.close()


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    lens=st.lists(st.integers(1, 70), min_size=1, max_size=5),
    seed=st.integers(0, 2**16),
    which=st.integers(0, 2),
)
def test_bits_do_not_depend_on_company(
    sessions: list[NativeSession], lens: list[int], seed: int, which: int
) -> None:
    draws = np.random.default_rng(seed)
    texts = [draws.integers(0, 96, n) for n in lens]
    alone = []
    for text in texts:
        sequence = Sequence(text, tuple(range(3)))
        while sequence.done < len(text):
            advance(sessions[0], [(sequence, 1)])
        alone.append(np.concatenate(sequence.logits))
    mixed = [
        Sequence(text, tuple(map(int, order)))
        for text, order in zip(
            texts, draws.permutation(NUM_BLOCKS)[: 3 * len(texts)].reshape(-1, 3), strict=True
        )
    ]
    session = sessions[which]
    while any(s.done < len(s.tokens) for s in mixed):
        parts = []
        for index in draws.permutation(len(mixed)):
            left = len(mixed[index].tokens) - mixed[index].done
            count = min(left, int(draws.choice([0, 1, 2, 3, 7, 33, 70])))
            if count:
                parts.append((mixed[index], count))
        if parts:
            advance(session, parts)
    for sequence, expected in zip(mixed, alone, strict=True):
        found = np.concatenate(sequence.logits)
        assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))


def test_a_step_repeats(sessions: list[NativeSession]) -> None:
    """What another sequence left in a block does not show."""
    text = np.arange(40) % 96
    results = []
    for blocks in ((0, 1), (3, 2), (0, 1)):
        sequence = Sequence(text, blocks)
        advance(sessions[1], [(sequence, 40)])
        results.append(sequence.logits[0])
        advance(sessions[1], [(Sequence(text[::-1].copy(), (0, 1)), 40)])
    assert np.array_equal(results[0], results[1]) and np.array_equal(results[0], results[2])


def test_trees_equal_chains(sessions: list[NativeSession]) -> None:
    """A branch of a tree gives the bits of the same tokens one after the other."""
    prompt = np.arange(30) % 96
    branches = ([5, 9, 11, 2], [5, 9, 40, 41], [7, 3])
    expected = []
    for branch in branches:
        sequence = Sequence(np.concatenate([prompt, branch]), (0, 1))
        advance(sessions[0], [(sequence, len(sequence.tokens))])
        expected.append(sequence.logits[0][30:])
    sequence = Sequence(prompt, (4, 5))
    advance(sessions[2], [(sequence, 30)])
    # 5 → 9 → 11 → 2, with 40 → 41 from the second token, and 7 → 3 beside it.
    tokens = np.array([5, 9, 11, 2, 40, 41, 7, 3])
    parents = np.array([-1, 0, 1, 2, 1, 4, -1, 6])
    positions = np.array([30, 31, 32, 33, 32, 33, 30, 31])
    batch = Batch(tokens, positions, (Span(0, 8, (4, 5)),), np.arange(8), parents)
    found = sessions[2].step(batch).logits
    for rows, wanted in zip(([0, 1, 2, 3], [0, 1, 4, 5], [6, 7]), expected, strict=True):
        assert np.array_equal(found[rows], wanted)


def test_a_branch_that_is_moved_into_line_is_a_chain(sessions: list[NativeSession]) -> None:
    """After a tree, the rows of the branch that is kept are those of plain decoding."""
    prompt = np.arange(29) % 96
    chain = Sequence(np.concatenate([prompt, [5, 9, 40, 41, 8, 77]]), (0, 1))
    advance(sessions[0], [(chain, 35)])
    sequence = Sequence(prompt, (4, 5))
    advance(sessions[2], [(sequence, 29)])
    tokens = np.array([5, 7, 9, 11, 40, 41])  # 5 → 9 → 40 → 41, with 7 and 11 in between
    parents = np.array([-1, -1, 0, 2, 2, 4])
    positions = np.array([29, 29, 30, 31, 31, 32])
    sessions[2].step(Batch(tokens, positions, (Span(0, 6, (4, 5)),), np.array([5]), parents))

    def row(index: int) -> int:
        return (4, 5)[index // BLOCK_LEN] * BLOCK_LEN + index % BLOCK_LEN

    sessions[2].copy_rows([(row(29 + i), row(29 + j)) for i, j in ((2, 1), (4, 2), (5, 3))])
    batch = Batch(np.array([8, 77]), np.array([33, 34]), (Span(0, 2, (4, 5)),), np.arange(2))
    assert np.array_equal(sessions[2].step(batch).logits, chain.logits[0][33:])


def test_rows_that_are_not_there_are_refused(sessions: list[NativeSession]) -> None:
    from qeff.core.errors import RequestError

    for pair in ((0, NUM_BLOCKS * BLOCK_LEN), (-1, 0)):
        with pytest.raises(RequestError, match="no such cache row"):
            sessions[0].copy_rows([pair])


def test_parents_are_checked(sessions: list[NativeSession], tmp_path: Path) -> None:
    from qeff.core.errors import RequestError

    batch = Batch(
        np.array([1, 2]),
        np.array([0, 1]),
        (Span(0, 2, (0,)),),
        np.array([1]),
        np.array([-1, 1]),
    )
    with pytest.raises(RequestError, match="parent"):
        sessions[0].step(batch)
