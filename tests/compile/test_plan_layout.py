"""Layouts: which axes are tokens, and what reshapes and broadcasts make of them."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from qeff.compile.plan import layout as lay
from qeff.compile.plan.layout import Dim, LayoutError

B, S, T = ("B",), ("S",), ("B", "S")


def dims(*sizes: int | str) -> list[Dim]:
    return [lay.read_dim(s if isinstance(s, int) else ir.SymbolicDim(s)) for s in sizes]


@pytest.mark.parametrize(
    ("text", "tokens", "size"),
    [
        ("batch_size", {"B"}, 1),
        ("seq_len", {"S"}, 1),
        ("batch_size*seq_len", {"B", "S"}, 1),
        ("4*batch_size*seq_len", {"B", "S"}, 4),
        ("(seq_len * 12)", {"S"}, 12),
        ("ctx_len", {"M"}, 1),
    ],
)
def test_declared_sizes_are_understood(text: str, tokens: set[str], size: int) -> None:
    assert lay.read_dim(ir.SymbolicDim(text)) == Dim(frozenset(tokens), size)


@pytest.mark.parametrize("text", ["seq_len + 1", "s17", "seq_len*seq_len", "seq_len//2"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(LayoutError):
        lay.read_dim(ir.SymbolicDim(text))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((B, S, (64,)), ("batch_size", "seq_len", 4, 16), (B, S, (4,), (16,))),
        ((B, S, (4,), (16,)), ("batch_size", "seq_len", 64), (B, S, (64,))),
        ((B, S, (64,)), ("batch_size*seq_len", 64), (T, (64,))),
        ((T, (8,)), ("batch_size", "seq_len", 8), (B, S, (8,))),
        ((B, (4,), S, (16,)), ("4*batch_size", "seq_len", 16), (("B", 4), S, (16,))),
        ((("B", 4), S, (16,)), ("batch_size", 4, "seq_len", 16), (B, (4,), S, (16,))),
        ((B, S), ("batch_size", 1, "seq_len", 1), (B, (1,), S, (1,))),
        ((B, S, (6,)), ("6*batch_size*seq_len",), (("B", "S", 6),)),
        ((B, S, (2,), (6,)), ("batch_size", "seq_len", 3, 4), (B, S, (3,), (4,))),
        ((B, (3,), (4,), S), ("batch_size", 2, 6, "seq_len"), (B, (2,), (6,), S)),
    ],
)
def test_reshape(before: lay.Layout, after: tuple, expected: lay.Layout) -> None:
    assert lay.regroup(before, dims(*after)) == expected


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((B, (4,), S, (16,)), ("batch_size", "seq_len", 64)),  # heads jump over the tokens
        ((B, S, (64,)), ("seq_len", "batch_size", 64)),
        ((B, S, (64,)), ("batch_size", "seq_len", 63)),
        ((B, S, (64,)), ("batch_size", 64)),
    ],
)
def test_reshape_that_mixes_tokens_is_refused(before: lay.Layout, after: tuple) -> None:
    with pytest.raises(LayoutError):
        lay.regroup(before, dims(*after))


def test_broadcast_aligns_at_the_last_axis() -> None:
    x, heads, scale = (B, (4,), S, (16,)), lay.plain((4, 1, 1)), lay.plain((16,))
    target = lay.merge([x, heads, scale])
    assert target == x
    assert lay.aligned_shape(x, target) == (4, 16)
    assert lay.aligned_shape(heads, target) == (4, 1)
    assert lay.aligned_shape(scale, target) == (1, 16)
    assert lay.merge([(B, S, (1,)), lay.plain((8,))]) == (B, S, (8,))


@pytest.mark.parametrize(
    "layouts",
    [
        [(B, S, (8,)), (S, B, (8,))],
        [(B, S, (8,)), lay.plain((5, 8))],  # a number meets the tokens
        [(B, S, (1,)), (B, (1,), S)],  # every token with every other
        [(B, S, (8,)), (B, S, (7,))],
    ],
)
def test_broadcast_that_mixes_tokens_is_refused(layouts: list[lay.Layout]) -> None:
    with pytest.raises(LayoutError):
        lay.merge(layouts)
