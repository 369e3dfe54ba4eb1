"""How a parameter is made from checkpoint tensors, said without torch.

Most parameters are one leaf: a checkpoint tensor as it is. Where a library renames, stacks, cuts or
transposes tensors while loading, the expression says so, and an exporter writes it as nodes.
Knows nothing about where a tensor's bytes lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor of the checkpoint, by name."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Concat:
    """Parts one after another along an existing axis."""

    parts: tuple[Expression, ...]
    axis: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slice:
    """``start`` to ``stop`` of one axis."""

    source: Expression
    axis: int
    start: int
    stop: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Permute:
    """Axes in another order."""

    source: Expression
    perm: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reshape:
    """The same values in the same order under another shape."""

    source: Expression
    shape: tuple[int, ...]


Expression = Leaf | Concat | Slice | Permute | Reshape


def leaves(expression: Expression) -> Iterator[Leaf]:
    """Every checkpoint tensor that an expression reads."""
    match expression:
        case Leaf():
            yield expression
        case Concat(parts=parts):
            for part in parts:
                yield from leaves(part)
        case Slice(source=source) | Permute(source=source) | Reshape(source=source):
            yield from leaves(source)


def concat(parts: tuple[Expression, ...], axis: int) -> Expression:
    """Parts joined along ``axis``."""
    first = parts[0].shape
    axis %= len(first)
    total = sum(part.shape[axis] for part in parts)
    return Concat(parts, axis, (*first[:axis], total, *first[axis + 1 :]))


def stack(parts: tuple[Expression, ...], axis: int) -> Expression:
    """Parts joined along an axis that they do not have yet."""
    axis %= len(parts[0].shape) + 1
    wide = tuple(reshape(p, (*p.shape[:axis], 1, *p.shape[axis:])) for p in parts)
    return concat(wide, axis)


def cut(source: Expression, axis: int, start: int, stop: int) -> Expression:
    """``start`` to ``stop`` of an axis."""
    axis %= len(source.shape)
    if start == 0 and stop == source.shape[axis]:
        return source
    shape = (*source.shape[:axis], stop - start, *source.shape[axis + 1 :])
    return Slice(source, axis, start, stop, shape)


def permute(source: Expression, perm: tuple[int, ...]) -> Expression:
    """Axes in another order."""
    if perm == tuple(range(len(perm))):
        return source
    return Permute(source, perm, tuple(source.shape[i] for i in perm))


def reshape(source: Expression, shape: tuple[int, ...]) -> Expression:
    """The same values under another shape."""
    if isinstance(source, Reshape):
        source = source.source
    return source if source.shape == shape else Reshape(source, shape)
