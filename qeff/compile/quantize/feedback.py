"""Rounding that knows the inputs: each column's error is made good in the columns after it.

What counts is the error of a product, whose square is d·G·dᵀ for the error d of a row and the inner
products G = xᵀx of the inputs. The scale of every block is searched for with the error weighed by
the mean x² of its columns; then columns are rounded one after the other, and the rest of the row
moves to where the square is least. Knows no model; rows do not depend on each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from qeff.compile.quantize.rounding import BLOCK_LEN, codes_of, quantise, restore, scales_of

MAX_SPAN = 4096  # columns that are treated together: the factor of more would not fit in memory
# Added to G, as a part of its diagonal. Inner products between columns are what a short text tells
# least surely; with this much they are believed by half.
DAMPING = 1.0
_STRETCH = 8 * BLOCK_LEN  # columns whose errors reach the far rest of a row together
_LEAST = 1e-4  # importance of a column whose input was never seen


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """How much errors in the columns of a matrix count; columns in whole blocks.

    ``importance`` is float32 [cols]. ``factors`` has, for each span of columns, the upper
    triangular U with UᵀU = G⁻¹; without them every column stands for itself.
    """

    importance: np.ndarray
    factors: tuple[np.ndarray, ...] = ()


def spans(num_cols: int) -> Iterator[slice]:
    """The columns that share a factor: whole blocks, about as many in each span."""
    num_spans = -(-num_cols // MAX_SPAN)
    step = -(-num_cols // num_spans)
    step += -step % BLOCK_LEN
    for start in range(0, num_cols, step):
        yield slice(start, min(start + step, num_cols))


def sensitivity_of(inputs: np.ndarray, has_feedback: bool = True) -> Sensitivity:
    """The sensitivity to float32 inputs [tokens, cols]; a matrix of zeros makes all columns equal.

    ``has_feedback`` False gives the importance alone.
    """
    num_cols = inputs.shape[1]
    padded = num_cols + -num_cols % BLOCK_LEN
    squares = np.zeros(padded)
    squares[:num_cols] = np.square(inputs).sum(axis=0, dtype=np.float64)
    mean = squares.sum() / num_cols
    importance = squares / mean if mean > 0 else np.ones(padded)
    importance = np.maximum(importance, _LEAST).astype(np.float32)
    if not has_feedback:
        return Sensitivity(importance)
    return Sensitivity(
        importance, tuple(_factor(inputs[:, span], squares[span]) for span in spans(padded))
    )


def _factor(inputs: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """U of a span; ``squares`` are the inputs', with zeros for the columns that fill a block."""
    length = np.where(squares > 0, np.sqrt(squares), 1).astype(np.float32)
    # With columns of length 1 the numbers are tame enough for float32.
    unit = inputs / length[: inputs.shape[1]]
    gram = np.zeros((len(squares), len(squares)), np.float32)
    gram[: unit.shape[1], : unit.shape[1]] = unit.T @ unit
    places = np.arange(len(squares))
    gram[places, places] = np.where(squares > 0, 1, 0) + np.float32(DAMPING)
    # G = RRᵀ with R upper triangular is Cholesky's way from the last column to the first; U = R⁻¹.
    root = np.linalg.cholesky(gram[::-1, ::-1])[::-1, ::-1]
    return np.ascontiguousarray(_invert_upper(root) / length, np.float32)


def _invert_upper(matrix: np.ndarray) -> np.ndarray:
    """The inverse of an upper triangular matrix, by halves: most of it is products."""
    size = len(matrix)
    if size <= 2 * BLOCK_LEN:
        return np.asarray(np.triu(np.linalg.inv(matrix)))
    half = size // 2
    inverse = np.zeros_like(matrix)
    inverse[:half, :half] = _invert_upper(matrix[:half, :half])
    inverse[half:, half:] = _invert_upper(matrix[half:, half:])
    inverse[:half, half:] = -inverse[:half, :half] @ (matrix[:half, half:] @ inverse[half:, half:])
    return inverse


def quantise_rows(
    rows: np.ndarray, form: str, sensitivity: Sensitivity
) -> tuple[np.ndarray, np.ndarray]:
    """The stored scales [rows, blocks] and the codes uint8 [rows, cols] of rows in whole blocks."""
    num_rows, num_cols = rows.shape
    blocks = rows.reshape(num_rows, -1, BLOCK_LEN)
    weights = sensitivity.importance.reshape(-1, BLOCK_LEN)
    stored, codes = quantise(blocks, form, weights)
    codes = codes.reshape(num_rows, num_cols)
    if not sensitivity.factors:
        return stored, codes
    scales = np.ascontiguousarray(scales_of(stored, form).T)
    for span, upper in zip(spans(num_cols), sensitivity.factors, strict=True):
        turned = np.ascontiguousarray(rows[:, span].T)  # a column is then one run of memory
        first = span.start // BLOCK_LEN
        codes[:, span] = _round_span(turned, form, scales[first:], upper).T
    return stored, codes


def _round_span(rest: np.ndarray, form: str, scales: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """The codes of [cols, rows], which is used up; ``scales`` are [blocks, rows]."""
    codes = np.empty(rest.shape, np.uint8)
    for start in range(0, len(rest), _STRETCH):
        stop = min(start + _STRETCH, len(rest))
        errors = np.empty_like(rest[start:stop])
        for first in range(start, stop, BLOCK_LEN):
            last = first + BLOCK_LEN
            block, mine = slice(first, last), slice(first - start, last - start)
            scale = scales[first // BLOCK_LEN]
            codes[block] = _round_block(rest[block], form, scale, upper[block, block], errors[mine])
            rest[last:stop] -= upper[block, last:stop].T @ errors[mine]
        # What lies far behind is moved by many columns at once.
        rest[stop:] -= upper[start:stop, stop:].T @ errors
    return codes


def _round_block(
    block: np.ndarray, form: str, scale: np.ndarray, upper: np.ndarray, errors: np.ndarray
) -> np.ndarray:
    """The codes of one block [32, rows]; the errors, as the rest needs them, go to ``errors``."""
    codes = np.empty(block.shape, np.uint8)
    for column, (values, error) in enumerate(zip(block, errors, strict=True)):
        codes[column] = codes_of(values, scale, form)
        np.subtract(values, restore(codes[column], scale, form), out=error)
        error /= upper[column, column]
        block[column + 1 :] -= upper[column, column + 1 :, None] * error
    return codes
