"""A weight matrix, or a stack of them, that is read some rows at a time.

Made of whatever holds the values: a tensor of a graph, stored either way round, or the packed rows
of a checkpoint. Knows nothing of panels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from qeff.core.tensor import LazyTensor, RowReader


class NoNumber(ValueError):
    """A matrix with a value that is infinite or not a number."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """``read(i, start, stop)`` gives rows of matrix i: floats, or packed rows of ``packing``."""

    shape: tuple[int, int, int]  # matrices, rows, columns
    read: Callable[[int, int, int], np.ndarray]
    packing: str | None = None


def stack_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """The shape of a matrix or of a stack of matrices, as a stack."""
    return math.prod(shape[:-2]), shape[-2], shape[-1]


def float_matrix(values: np.ndarray, is_transposed: bool = False) -> Matrix:
    """Values [rows, cols] or [matrices, rows, cols], or with the last two axes swapped."""
    stack = values.reshape(stack_shape(values.shape))
    if is_transposed:
        stack = stack.swapaxes(1, 2)

    def read(index: int, start: int, stop: int) -> np.ndarray:
        return np.ascontiguousarray(stack[index, start:stop], np.float32)

    shape = stack.shape
    return Matrix((shape[0], shape[1], shape[2]), read)


def packed_matrix(lazy: LazyTensor) -> Matrix:
    """The packed rows of a checkpoint tensor."""
    shape = stack_shape(tuple(lazy.shape))
    if isinstance(lazy, RowReader):
        return Matrix(shape, _by_row(lazy.raw_rows, shape[1]), lazy.format)
    packed = lazy.raw()
    return Matrix(shape, _by_row(lambda start, stop: packed[start:stop], shape[1]), lazy.format)


def unpacked_matrix(lazy: LazyTensor) -> Matrix:
    """The values of a checkpoint tensor that is stored packed."""
    if not isinstance(lazy, RowReader):
        return float_matrix(lazy.read())
    shape = stack_shape(tuple(lazy.shape))
    return Matrix(shape, _by_row(lazy.read_rows, shape[1]))


def _by_row(
    rows: Callable[[int, int], np.ndarray], num_rows: int
) -> Callable[[int, int, int], np.ndarray]:
    """Rows counted through a whole stack, asked for by matrix."""

    def read(index: int, start: int, stop: int) -> np.ndarray:
        return rows(index * num_rows + start, index * num_rows + stop)

    return read
