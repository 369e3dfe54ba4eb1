"""attention over a paged cache against torch over whole sequences.

Two or three sequences run in ragged chunks, their blocks scattered over the cache; torch sees each
sequence at once, with an explicit mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from op_check import run, token, weight

from qeff.ops import Arg, Step, kinds
from qeff.ops.base import RuleError

BLOCK_LEN = 4


@dataclass(frozen=True)
class Case:
    heads: int = 4
    kv_heads: int = 2
    key_dim: int = 8
    value_dim: int = 6
    window: int = 0
    chunk: int = 0
    softcap: float = 0.0
    sinks: bool = False
    alibi: bool = False


CASES = {
    "gqa": Case(),
    "mha": Case(kv_heads=4, value_dim=8),
    "mqa, odd sizes": Case(heads=3, kv_heads=1, key_dim=5, value_dim=7),
    "window": Case(window=5),
    "window of one": Case(window=1),
    "chunk": Case(chunk=3),
    "softcap": Case(softcap=1.5),
    "sinks": Case(sinks=True),
    "sinks and window": Case(sinks=True, window=4),
    "alibi": Case(alibi=True, kv_heads=4),
    "everything": Case(window=6, softcap=2.0, sinks=True, alibi=True),
}


class Sequences:
    """Random queries, keys and values of whole sequences, and a paged cache for them."""

    def __init__(self, case: Case, lengths: tuple[int, ...], seed: int = 0) -> None:
        self.case = case
        rng = np.random.default_rng(seed)

        def normal(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape).astype(np.float32)

        self.q = [normal(n, case.heads, case.key_dim) for n in lengths]
        self.k = [normal(n, case.kv_heads, case.key_dim) for n in lengths]
        self.v = [normal(n, case.kv_heads, case.value_dim) for n in lengths]
        self.sinks = normal(case.heads) if case.sinks else None
        self.slopes = np.abs(normal(case.heads)) if case.alibi else None
        counts = [-(-n // BLOCK_LEN) for n in lengths]
        order = rng.permutation(sum(counts) + 3)
        self.tables = tuple(np.split(order, np.cumsum(counts))[:-1])
        shape = (sum(counts) + 3, BLOCK_LEN, case.kv_heads)
        # What was in the cache before must never show.
        self.cache = (normal(*shape, case.key_dim) * 1e3, normal(*shape, case.value_dim) * 1e3)

    def attrs(self) -> dict:
        case = self.case
        return {
            "cache": 0, "value_dim": case.value_dim, "scale": 0.37, "softcap": case.softcap,
            "window": case.window, "chunk": case.chunk,
        }  # fmt: skip

    def run(self, ranges: list[tuple[int, int]], parents: np.ndarray | None = None,
            positions: np.ndarray | None = None, shares: bool = False,
            rows: np.ndarray | None = None) -> np.ndarray:  # fmt: skip
        """One step with tokens start..stop of each sequence; rows: only these have queries."""
        parts = [
            [full[i][start:stop] for i, (start, stop) in enumerate(ranges)]
            for full in (self.q, self.k, self.v)
        ]
        q, k, v = (np.concatenate(part) for part in parts)
        slots = np.concatenate([np.arange(start, stop) for start, stop in ranges])
        owners = np.repeat(np.arange(len(ranges)), [stop - start for start, stop in ranges])
        step = Step(
            positions=slots if positions is None else positions, owners=owners, slots=slots,
            rows=np.zeros(0, np.int64) if rows is None else rows, tables=self.tables,
            caches=(self.cache,), parents=parents,
        )  # fmt: skip
        extra = [None if x is None else weight(x) for x in (self.sinks, self.slopes)]
        query = token(q) if rows is None else ("row", q[rows])
        inputs = [query, None if shares else token(k), None if shares else token(v), *extra]
        return run("attention", inputs, step, **self.attrs(), by_row=rows is not None)[0]

    def expected(self, i: int, seen: torch.Tensor, positions: torch.Tensor) -> np.ndarray:
        """torch over the whole sequence, with the mask given."""
        case = self.case
        q, k, v = (torch.from_numpy(full[i]).transpose(0, 1) for full in (self.q, self.k, self.v))
        group = case.heads // case.kv_heads
        k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
        scores = q @ k.mT * 0.37
        if case.softcap:
            scores = torch.tanh(scores / case.softcap) * case.softcap
        if self.slopes is not None:
            distance = (positions[None] - positions[:, None]).float()
            scores = scores + torch.from_numpy(self.slopes)[:, None, None] * distance
        scores = scores.masked_fill(~seen, -torch.inf)
        if self.sinks is not None:
            sink = torch.from_numpy(self.sinks)[:, None, None].expand(-1, scores.shape[1], 1)
            scores = torch.cat([scores, sink], -1)
        share = torch.softmax(scores, -1)[..., : k.shape[1]]
        return (share @ v).transpose(0, 1).numpy()


def visible(case: Case, length: int) -> torch.Tensor:
    query, key = torch.arange(length)[:, None], torch.arange(length)[None]
    seen = key <= query
    if case.window:
        seen &= key > query - case.window
    if case.chunk:
        seen &= key // case.chunk == query // case.chunk
    return seen


@pytest.mark.parametrize("name", CASES)
def test_ragged_chunks_and_decode_equal_whole_sequences(name: str) -> None:
    lengths = (13, 9, 10)
    data = Sequences(CASES[name], lengths)
    done, got = [0, 0, 0], [[], [], []]
    for take in ((5, 1, 9), (6, 0, 1), (1, 7, 0), (1, 1, 0)):  # a chunk crosses block borders
        ranges = [(d, d + n) for d, n in zip(done, take, strict=True)]
        parts = np.split(data.run(ranges), np.cumsum(take)[:-1])
        for i, part in enumerate(parts):
            got[i].append(part)
            done[i] += take[i]
    assert done == list(lengths)
    for i, length in enumerate(lengths):
        expected = data.expected(i, visible(data.case, length), torch.arange(length))
        np.testing.assert_allclose(np.concatenate(got[i]), expected, rtol=2e-4, atol=2e-5)


def test_a_shared_cache_is_read_and_not_written() -> None:
    data = Sequences(Case(), (9, 7))
    data.run([(0, 9), (0, 7)])
    before = [array.copy() for array in data.cache]
    data.q = [q[::-1].copy() for q in data.q]  # another layer's queries
    got = data.run([(0, 9), (0, 7)], shares=True)
    for array, old in zip(data.cache, before, strict=True):
        np.testing.assert_array_equal(array, old)
    expected = [
        data.expected(i, visible(data.case, n), torch.arange(n)) for i, n in enumerate((9, 7))
    ]
    np.testing.assert_allclose(got, np.concatenate(expected), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["gqa", "window", "chunk", "alibi", "sinks"])
def test_a_tree_sees_its_ancestors_only(name: str) -> None:
    """Each branch of a tree gives what the same tokens give as a plain sequence."""
    context, tree = 6, [-1, 0, 0, 1, 2, -1, 5]  # parents within the tree; two roots
    data = Sequences(CASES[name], (context + len(tree),), seed=3)
    data.run([(0, context)])
    depth: list[int] = []
    for parent in tree:
        depth.append(0 if parent < 0 else depth[parent] + 1)
    positions = context + np.array(depth)
    got = data.run([(context, context + len(tree))], np.array(tree), positions)
    for leaf in range(len(tree)):
        path = [leaf]
        while tree[path[0]] >= 0:
            path.insert(0, tree[path[0]])
        keep = [*range(context), *(context + node for node in path)]
        line = Sequences(CASES[name], (context + len(tree),), seed=3)
        line.q, line.k, line.v = ([full[0][keep]] for full in (data.q, data.k, data.v))
        expected = line.expected(0, visible(line.case, len(keep)), torch.arange(len(keep)))
        np.testing.assert_allclose(got[leaf], expected[-1], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("rows", [[], [8], [20, 3, 3, 8, 9, 0]], ids=str)
def test_queries_of_rows_are_those_of_their_tokens(name: str, rows: list[int]) -> None:
    ranges = [(4, 13), (0, 7), (2, 8)]
    whole, some = (Sequences(CASES[name], (13, 9, 10)) for _ in range(2))
    for data in (whole, some):
        data.run([(0, 4), (0, 0), (0, 2)])
    expected = whole.run(ranges)
    got = some.run(ranges, rows=np.array(rows, np.int64))
    np.testing.assert_allclose(got, expected[rows], rtol=1e-5, atol=1e-6)
    for one, other in zip(whole.cache, some.cache, strict=True):
        np.testing.assert_array_equal(one, other)  # written for every token


def test_queries_of_rows_in_a_tree() -> None:
    tree = np.array([-1, 0, 0, 1, 2, -1, 5])
    positions = 6 + np.array([0, 1, 1, 2, 2, 0, 1])
    whole, some = (Sequences(CASES["everything"], (13,), seed=3) for _ in range(2))
    for data in (whole, some):
        data.run([(0, 6)])
    expected = whole.run([(6, 13)], tree, positions)
    rows = np.array([4, 6, 1])
    got = some.run([(6, 13)], tree, positions, rows=rows)
    np.testing.assert_allclose(got, expected[rows], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["token", "row"])
def test_the_attribute_and_the_kind_of_the_queries_agree(kind: str) -> None:
    data = Sequences(Case(), (3,))
    args = [Arg(kind, data.q[0].shape[1:], "f32")]
    args += [Arg("token", full[0].shape[1:], "f32") for full in (data.k, data.v)]
    attention = kinds()["attention"]
    (out,) = attention.outputs(args, {**data.attrs(), "by_row": kind == "row"})
    assert out.kind == kind
    with pytest.raises(RuleError, match="by_row"):
        attention.outputs(args, {**data.attrs(), "by_row": kind != "row"})
    args[1] = Arg("row", args[1].shape, "f32")
    with pytest.raises(RuleError, match="'k' is a row"):
        attention.outputs(args, {**data.attrs(), "by_row": kind == "row"})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"value_dim": 5}, "value_dim"),
        ({"cache": -1}, "cache"),
        ({"window": -2}, "window"),
        ({"scale": float("nan")}, "scale"),
        ({"causal": True}, "causal"),
    ],
)
def test_bad_attributes_are_refused(change: dict, reason: str) -> None:
    data = Sequences(Case(), (3,))
    step = Step(*(np.arange(3), np.zeros(3, np.int64), np.arange(3)), np.zeros(0, np.int64))
    inputs = [token(full[0]) for full in (data.q, data.k, data.v)]
    with pytest.raises(RuleError, match=reason):
        run("attention", inputs, step, **{**data.attrs(), **change})
