"""Which axes of a graph value are the tokens: the one fact that lowering carries along.

A *layout* lists the axes of a value. An axis is a tuple of factors: ``"B"`` (batch), ``"S"``
(sequence), ``"M"`` (the rows of a cache) or a whole number. [batch, heads, seq, dim] is
(("B",), (4,), ("S",), (16,)), and the flattened [batch * seq, width] is (("B", "S"), (64,)). What
remains when the letters are taken out is the *inner shape*, that of one token in the program.
Knows nothing of nodes and ops.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from qeff.core.spec import AXIS_BATCH, AXIS_CTX, AXIS_SEQ, AXIS_SLOTS

Factor = str | int
Axis = tuple[Factor, ...]
Layout = tuple[Axis, ...]

# The rows of a cache stand for the tokens that wrote them, a slot for the sequence in it.
_TOKENS = {AXIS_BATCH: "B", AXIS_SLOTS: "B", AXIS_SEQ: "S", AXIS_CTX: "M"}


class LayoutError(ValueError):
    """A shape, or a change of shape, that does not keep the tokens apart."""


@dataclass(frozen=True, slots=True)
class Dim:
    """One declared axis: its token factors, in no order, and the number they multiply."""

    tokens: frozenset[str]
    size: int


def read_dim(dim: int | ir.SymbolicDim) -> Dim:
    """Understand one declared axis, such as 64, ``seq_len`` or ``4*batch_size*seq_len``."""
    if isinstance(dim, int):
        return Dim(frozenset(), dim)
    tokens: list[str] = []
    size = 1
    for factor in str(dim.value).replace("(", "").replace(")", "").split("*"):
        name = factor.strip()
        if name in _TOKENS:
            tokens.append(_TOKENS[name])
        elif name.isdigit():
            size *= int(name)
        else:
            raise LayoutError(f"has an axis of size {dim.value!r}, which is no number of tokens")
    if len(set(tokens)) != len(tokens):
        raise LayoutError(f"has an axis of size {dim.value!r}")
    return Dim(frozenset(tokens), size)


def read_dims(value: ir.Value) -> list[Dim]:
    """The declared axes of a value."""
    if value.shape is None:
        raise LayoutError(f"value {value.name!r} has no shape")
    return [read_dim(dim) for dim in value.shape]


def declared(dims: Sequence[Dim]) -> Layout:
    """The layout of a value that is made from its shape alone: batch stands before sequence."""
    return tuple(_axis([*sorted(dim.tokens), dim.size]) for dim in dims)


def matches(layout: Layout, dims: Sequence[Dim]) -> bool:
    """Whether a layout says the same as a declared shape."""
    if len(layout) != len(dims):
        return False
    return all(
        set(tokens_of(axis)) == dim.tokens and size_of(axis) == dim.size
        for axis, dim in zip(layout, dims, strict=True)
    )


def dim_of(axis: Axis) -> Dim:
    """What an axis looks like from outside."""
    return Dim(frozenset(tokens_of(axis)), size_of(axis))


def tokens_of(axis: Axis) -> tuple[str, ...]:
    """The batch and sequence factors of an axis."""
    return tuple(factor for factor in axis if isinstance(factor, str))


def sizes_of(axis: Axis) -> tuple[int, ...]:
    """The number factors of an axis: its part of the inner shape."""
    return tuple(factor for factor in axis if isinstance(factor, int))


def size_of(axis: Axis) -> int:
    """The product of the number factors."""
    return math.prod(sizes_of(axis))


def is_one(axis: Axis) -> bool:
    """Whether the axis has size one and no tokens."""
    return not tokens_of(axis) and size_of(axis) == 1


def inner_shape(layout: Layout) -> tuple[int, ...]:
    """The shape of one token."""
    return tuple(size for axis in layout for size in sizes_of(axis))


def stored_shape(layout: Layout) -> tuple[int, ...]:
    """The shape of a constant in which tokens have size one."""
    return tuple(size_of(axis) for axis in layout)


def all_tokens(layout: Layout) -> tuple[str, ...]:
    """Every token factor, in order."""
    return tuple(token for axis in layout for token in tokens_of(axis))


def plain(shape: Sequence[int]) -> Layout:
    """The layout of a value without tokens."""
    return tuple((int(size),) for size in shape)


def inner_axis(layout: Layout, axis: int) -> int:
    """The place of an axis in the inner shape. Raises LayoutError when it holds tokens."""
    axis %= max(len(layout), 1)
    if tokens_of(layout[axis]):
        raise LayoutError(f"works along axis {axis}, which counts tokens")
    return sum(len(sizes_of(before)) for before in layout[:axis])


def replace_axis(layout: Layout, axis: int, size: int) -> Layout:
    """The layout with another size at an axis that holds no tokens."""
    axis %= len(layout)
    return (*layout[:axis], (size,), *layout[axis + 1 :])


def regroup(layout: Layout, dims: Sequence[Dim]) -> Layout:
    """The layout after a reshape to ``dims``: the same factors in the same order, grouped anew."""
    stream: list[Factor] = []  # the factors from last to first, neighbouring numbers in one
    for factor in (factor for axis in reversed(layout) for factor in reversed(axis)):
        if isinstance(factor, int) and stream and isinstance(stream[-1], int):
            stream[-1] *= factor
        elif factor != 1:
            stream.append(factor)
    grouped = tuple(_take(stream, dim) for dim in dims)
    if stream:
        raise LayoutError("reshapes in a way that mixes tokens with other axes")
    return grouped


def _take(stream: list[Factor], dim: Dim) -> Axis:
    """Take the factors of one axis from the end of the stream, splitting a number when needed."""
    tokens, size = set(dim.tokens), dim.size
    taken: list[Factor] = []
    while tokens or size > 1:
        factor = stream.pop() if stream else None
        if isinstance(factor, str) and factor in tokens:
            tokens.remove(factor)
        elif isinstance(factor, int) and size % factor == 0:
            size //= factor
        elif isinstance(factor, int) and factor % size == 0 and size > 1:
            stream.append(factor // size)
            factor, size = size, 1
        else:
            raise LayoutError("reshapes in a way that mixes tokens with other axes")
        taken.append(factor)
    return _axis(taken)


def _axis(factors: Sequence[Factor]) -> Axis:
    """An axis in its one spelling: a single number when it has no tokens, no ones beside tokens."""
    if all(isinstance(factor, int) for factor in factors):
        return (math.prod(factor for factor in factors if isinstance(factor, int)),)
    return tuple(factor for factor in factors if factor != 1)


def merge(layouts: Sequence[Layout]) -> Layout:
    """The layout that values broadcast to, aligned at the last axis as ONNX does."""
    rank = max(len(layout) for layout in layouts)
    padded = [((1,),) * (rank - len(layout)) + tuple(layout) for layout in layouts]
    merged: list[Axis] = []
    for axes in zip(*padded, strict=True):
        real = [axis for axis in axes if not is_one(axis)]
        if not real:
            merged.append((1,))
        elif all(axis == real[0] for axis in real):
            merged.append(real[0])
        else:
            raise LayoutError(f"combines axes {real[0]} and {real[-1]}")
    if len(set(found := all_tokens(tuple(merged)))) != len(found):
        raise LayoutError("pairs every token with every other")
    return tuple(merged)


def aligned_shape(layout: Layout, target: Layout) -> tuple[int, ...]:
    """The inner shape of a value as it must stand to broadcast to ``target``."""
    padded = ((1,),) * (len(target) - len(layout)) + tuple(layout)
    shape: list[int] = []
    for have, want in zip(padded, target, strict=True):
        shape.extend(sizes_of(have) if have == want else (1,) * len(sizes_of(want)))
    return tuple(shape)
