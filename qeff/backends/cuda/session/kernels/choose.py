"""Choosing tokens from logits: the largest, or one drawn from those that the filters leave.

All filters keep the logits from a border on, which ``borders`` finds. Rows are read in pieces:
first the piece is drawn by the sums of what is kept, then the token in it. Every sum has a fixed
order, so a token depends on its row and its choice alone.
"""

from __future__ import annotations

import triton
import triton.language as tl

from qeff.backends.cuda.session.kernels.rows import (
    LONGS,
    PART,
    PIECE,
    SMALLEST,
    WORDS,
    filters_of,
    largest_of,
    ordered,
    piece_of,
    scale_of,
)
from qeff.backends.cuda.session.launch import release, wait


@triton.jit
def find_maxima(
    logits, maxima, places, size, pieces, stride,
    PDL: tl.constexpr, PART: tl.constexpr = PART, PIECE: tl.constexpr = PIECE,
):  # fmt: skip
    """The largest logit of each piece and where it first stands; infinity for what is no number."""
    release(PDL)
    wait(PDL)
    values, column, piece = piece_of(logits, stride, size, PART, PIECE)
    values = tl.where(values != values, float("inf"), values)
    largest = tl.max(values, 1)
    where = tl.min(tl.where(values == largest[:, None], column, size), 1)
    at = tl.program_id(0) * pieces + piece
    tl.store(maxima + at, largest, mask=piece < pieces)
    tl.store(places + at, where, mask=piece < pieces)


@triton.jit
def _place_of(places, row, pieces, values, largest, PIECES: tl.constexpr):
    """Where the largest logit first stands."""
    piece = tl.arange(0, PIECES)
    is_largest = (values == largest) & (piece < pieces)
    where = tl.load(places + row * pieces + piece, mask=is_largest, other=2147483647)
    return tl.min(where, 0).to(tl.int64)


@triton.jit
def take_largest(
    words, maxima, places, tokens, pieces, PIECES: tl.constexpr, PDL: tl.constexpr,
    WORDS: tl.constexpr = WORDS,
):  # fmt: skip
    """The place of each row's largest logit, or -1 where that is not finite or no token wanted."""
    release(PDL)
    wait(PDL)
    row = tl.program_id(0)
    temperature = tl.load(words + row * WORDS)
    largest, values = largest_of(maxima, row, pieces, PIECES)
    place = _place_of(places, row, pieces, values, largest, PIECES)
    is_wanted = (temperature >= 0) & (tl.abs(largest) < float("inf"))
    tl.store(tokens + row, tl.where(is_wanted, place, -1))


@triton.jit
def sum_weights(
    logits, words, ints, maxima, borders, sums, size, pieces, stride,
    PIECES: tl.constexpr, KEPT: tl.constexpr, PDL: tl.constexpr,
    PART: tl.constexpr = PART, PIECE: tl.constexpr = PIECE, WORDS: tl.constexpr = WORDS,
    SMALLEST: tl.constexpr = SMALLEST,
):  # fmt: skip
    """The sum of each piece's weights exp((logit - largest) / temperature).

    With ``KEPT`` those of rows with filters, as far as the filters keep them.
    """
    release(PDL)
    wait(PDL)
    row = tl.program_id(0)
    temperature = tl.load(words + row * WORDS)
    largest, _values = largest_of(maxima, row, pieces, PIECES)
    is_wanted = (temperature > 0) & (tl.abs(largest) < float("inf"))
    if KEPT:
        top_k, top_p, min_p = filters_of(words, ints, row, size, WORDS)
        is_wanted = is_wanted & ((top_k > 0) | (top_p < 1) | (min_p > 0))
    if is_wanted:
        piece = tl.program_id(1) * PART + tl.arange(0, PART)
        total = tl.zeros([PART], tl.float64)
        border = tl.full([], -2147483648, tl.int32)
        highest = border
        if KEPT:
            border = tl.load(borders + row)
            own = tl.load(maxima + row * pieces + piece, mask=piece < pieces, other=float("-inf"))
            highest = tl.max(ordered(own), 0)
        if highest >= border:
            values, _column, _piece = piece_of(logits, stride, size, PART, PIECE)
            scores = (values - largest) * scale_of(temperature, SMALLEST)
            weights = tl.exp(scores)
            if KEPT:
                is_kept = (ordered(values) >= border) & (scores >= _least(min_p, SMALLEST))
                weights = tl.where(is_kept, weights, 0.0)
            total = tl.sum(weights.to(tl.float64), 1)
        tl.store(sums + row * pieces + piece, total, mask=piece < pieces)


@triton.jit
def _least(min_p, SMALLEST: tl.constexpr):
    """The lowest score that min-p keeps."""
    return tl.where(min_p > 0, tl.log(tl.maximum(min_p, SMALLEST)), float("-inf"))


@triton.jit
def _uniform(key0, key1, index):
    """The number in [0, 1) of an index: the first word of Philox 4x64-10, as numpy counts."""
    a = index + 1
    b = (a == 0).to(tl.uint64)
    c = tl.zeros_like(a)
    d = tl.zeros_like(a)
    for _ in tl.static_range(10):
        high_a = tl.umulhi(a, tl.full([], 0xD2E7470EE14C6C93, tl.uint64))
        low_a = a * tl.full([], 0xD2E7470EE14C6C93, tl.uint64)
        high_c = tl.umulhi(c, tl.full([], 0xCA5A826395121157, tl.uint64))
        low_c = c * tl.full([], 0xCA5A826395121157, tl.uint64)
        a = high_c ^ b ^ key0
        b = low_c
        c = high_a ^ d ^ key1
        d = low_a
        key0 += tl.full([], 0x9E3779B97F4A7C15, tl.uint64)
        key1 += tl.full([], 0xBB67AE8584CAA73B, tl.uint64)
    return (a >> 11).to(tl.int64).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def _drawn(
    logits, sums, pieces, size, border, least, largest, scale, number,
    PIECES: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """The token at which the running sum of weights passes number * total: its piece first."""
    piece = tl.arange(0, PIECES)
    weights = tl.load(sums + piece, mask=piece < pieces, other=0.0)
    target = number * tl.sum(weights, 0)
    is_past = (tl.cumsum(weights, 0) > target) & (weights > 0)
    # Where rounding lets no sum pass, the last that has any weight is taken.
    last = tl.max(tl.where(weights > 0, piece, -1), 0)
    own = tl.minimum(tl.min(tl.where(is_past, piece, PIECES), 0), last)
    before = tl.sum(tl.where(piece < own, weights, 0.0), 0)
    at = own * PIECE + tl.arange(0, PIECE)
    values = tl.load(logits + at, mask=at < size, other=float("-inf"))
    scores = (values - largest) * scale
    is_kept = (ordered(values) >= border) & (scores >= least)
    weights = tl.where(is_kept, tl.exp(scores), 0.0).to(tl.float64)
    is_past = (before + tl.cumsum(weights, 0) > target) & (weights > 0)
    last = tl.max(tl.where(weights > 0, at, -1), 0)
    return tl.minimum(tl.min(tl.where(is_past, at, 2147483647), 0), last).to(tl.int64)


@triton.jit
def draw(
    logits, words, longs, ints, maxima, places, borders, sums, tokens, size, pieces, stride,
    PIECES: tl.constexpr, FILTERED: tl.constexpr, PDL: tl.constexpr,
    PIECE: tl.constexpr = PIECE, WORDS: tl.constexpr = WORDS,
    LONGS: tl.constexpr = LONGS, SMALLEST: tl.constexpr = SMALLEST,
):  # fmt: skip
    """Each row's token by its choice; -1 where none is wanted or the largest is not finite."""
    release(PDL)
    wait(PDL)
    row = tl.program_id(0)
    temperature = tl.load(words + row * WORDS)
    largest, values = largest_of(maxima, row, pieces, PIECES)
    place = _place_of(places, row, pieces, values, largest, PIECES)
    is_finite = tl.abs(largest) < float("inf")
    token = tl.where((temperature >= 0) & is_finite, place, -1)
    if (temperature > 0) & is_finite:
        key0 = tl.load(longs + row * LONGS + 2).to(tl.uint64, bitcast=True)
        key1 = tl.load(longs + row * LONGS + 3).to(tl.uint64, bitcast=True)
        index = tl.load(longs + row * LONGS + 4).to(tl.uint64, bitcast=True)
        border = tl.full([], -2147483648, tl.int32)
        least = tl.full([], float("-inf"), tl.float32)
        if FILTERED:
            top_k, top_p, min_p = filters_of(words, ints, row, size, WORDS)
            if (top_k > 0) | (top_p < 1):
                border = tl.load(borders + row)
            least = _least(min_p, SMALLEST)
        token = _drawn(
            logits + row.to(tl.int64) * stride, sums + row * pieces, pieces, size, border, least,
            largest, scale_of(temperature, SMALLEST), _uniform(key0, key1, index), PIECES, PIECE,
        )  # fmt: skip
    tl.store(tokens + row, token)
