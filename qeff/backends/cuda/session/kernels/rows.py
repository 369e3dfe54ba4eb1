"""Rows of logits as the kernels that choose tokens read them, and the fields of a row's choice.

Knows nothing of how a token is chosen.
"""

from __future__ import annotations

import triton
import triton.language as tl

PIECE = 512  # logits that have one maximum and one sum
PART = 8  # pieces of a program
# Where a choice's fields lie in its bytes, counted in words of their size.
WORDS = 10  # of 32 bits
LONGS = 5  # of 64 bits
SMALLEST = 1.1754943508222875e-38  # normal float32


@triton.jit
def piece_of(logits, stride, size, PART: tl.constexpr, PIECE: tl.constexpr):
    """The program's pieces of its row [PART, PIECE], -inf past the end, and their numbers."""
    piece = tl.program_id(1) * PART + tl.arange(0, PART)
    column = piece[:, None] * PIECE + tl.arange(0, PIECE)[None, :]
    row = logits + tl.program_id(0).to(tl.int64) * stride
    return tl.load(row + column, mask=column < size, other=float("-inf")), column, piece


@triton.jit
def largest_of(maxima, row, pieces, PIECES: tl.constexpr):
    """The row's largest logit, and the maxima of its pieces."""
    piece = tl.arange(0, PIECES)
    values = tl.load(maxima + row * pieces + piece, mask=piece < pieces, other=float("-inf"))
    return tl.max(values, 0), values


@triton.jit
def scale_of(temperature, SMALLEST: tl.constexpr):
    """What scores are multiplied with."""
    return (1.0 / tl.maximum(temperature.to(tl.float64), SMALLEST)).to(tl.float32)


@triton.jit
def filters_of(words, ints, row, size, WORDS: tl.constexpr):
    """top_k (0: off), top_p (1: off) and min_p (0: off) of a row's choice."""
    top_k = tl.load(ints + row * WORDS + 3)
    top_k = tl.where((top_k > 0) & (top_k < size), top_k, 0)
    return top_k, tl.load(words + row * WORDS + 1), tl.load(words + row * WORDS + 2)


@triton.jit
def ordered(x):
    """Whole numbers in the order of the floats; -0 and 0 are one."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
