"""The lowest logit that top-k and top-p keep, of each row that has such a filter.

Some logits of a row cut it into sections of about as many each. What lies above each of them is
counted or weighed, all at once; the logits of the one section with the border in it are copied
together, and the border is found among them by halving the range of float32's bit patterns, in
order. Copies come in any order, so their weights are added as whole numbers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from qeff.backends.cuda.session.kernels.rows import (
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

SAMPLE = 512  # logits that sections are made from
SIDES = 32  # logits that cut a row
LOWEST: tl.constexpr = tl.constexpr(-2139095041)  # -inf, as ordered() has it
_UNIT: tl.constexpr = tl.constexpr(17592186044416.0)  # 2^44: of 2^18 weights the sum is below 2^63


@triton.jit
def _asked(words, ints, maxima, row, size, pieces, PIECES: tl.constexpr, WORDS: tl.constexpr):
    """Whether the row has a border to find, its largest logit, top_k and top_p."""
    temperature = tl.load(words + row * WORDS)
    top_k, top_p, _min_p = filters_of(words, ints, row, size, WORDS)
    largest, _values = largest_of(maxima, row, pieces, PIECES)
    is_asked = (temperature > 0) & (tl.abs(largest) < float("inf")) & ((top_k > 0) | (top_p < 1))
    return is_asked, largest, top_k, top_p


@triton.jit
def cut_rows(
    logits, words, ints, maxima, cuts, counts, size, pieces, stride,
    PIECES: tl.constexpr, PDL: tl.constexpr, WORDS: tl.constexpr = WORDS,
    SAMPLE: tl.constexpr = SAMPLE, SIDES: tl.constexpr = SIDES,
):  # fmt: skip
    """Logits at which rows are cut, rising, and no logits copied together yet."""
    release(PDL)
    wait(PDL)
    row = tl.program_id(0)
    is_asked, _largest, _k, _p = _asked(words, ints, maxima, row, size, pieces, PIECES, WORDS)
    if is_asked:
        i = tl.arange(0, SAMPLE)
        own = logits + row.to(tl.int64) * stride
        at = (i.to(tl.int64) * size // SAMPLE).to(tl.int32)
        x = ordered(tl.load(own + at))
        # The same again for the other axis.
        y = ordered(tl.load(own + at + tl.zeros([SAMPLE], tl.int32)))
        is_tie = (y[None, :] == x[:, None]) & (i[None, :] < i[:, None])
        rank = tl.sum(((y[None, :] < x[:, None]) | is_tie).to(tl.int32), 1)
        side = tl.arange(0, SIDES)
        STEP: tl.constexpr = SAMPLE // SIDES
        wanted = side * STEP + STEP // 2
        cut = tl.sum(tl.where(rank[:, None] == wanted[None, :], x[:, None], 0), 0)
        before = tl.sum(tl.where(rank[:, None] == (wanted - STEP)[None, :], x[:, None], 0), 0)
        # Of a logit that many share, the next one cuts too: then a section has it alone.
        cut += ((cut == before) & (side > 0)).to(tl.int32)
        tl.store(cuts + row * SIDES + side, cut)
        tl.store(counts + row, 0)


@triton.jit
def weigh_sides(
    logits, words, ints, maxima, cuts, weighed, size, pieces, stride,
    PIECES: tl.constexpr, PDL: tl.constexpr,
    PART: tl.constexpr = PART, PIECE: tl.constexpr = PIECE, WORDS: tl.constexpr = WORDS,
    SMALLEST: tl.constexpr = SMALLEST, SIDES: tl.constexpr = SIDES,
):  # fmt: skip
    """How many of the program's logits are from each cut on, for top-k, or what they weigh."""
    release(PDL)
    wait(PDL)
    row = tl.program_id(0)
    is_asked, largest, top_k, _p = _asked(words, ints, maxima, row, size, pieces, PIECES, WORDS)
    if is_asked:
        values, column, _piece = piece_of(logits, stride, size, PART, PIECE)
        scale = scale_of(tl.load(words + row * WORDS), SMALLEST)
        weights = tl.exp((values - largest) * scale)
        weights = tl.where(top_k > 0, 1.0, weights)
        weights = tl.where(column < size, weights, 0.0)
        whole = ordered(values)
        place = weighed + (row * tl.num_programs(1) + tl.program_id(1)) * SIDES
        for side in range(SIDES):
            cut = tl.load(cuts + row * SIDES + side)
            found = tl.sum(tl.sum(tl.where(whole >= cut, weights, 0.0), 1).to(tl.float64), 0)
            tl.store(place + side, found)


@triton.jit
def _section(
    cuts, weighed, sums, row, parts, pieces, largest, top_k, top_p,
    PARTS: tl.constexpr, PIECES: tl.constexpr, SIDES: tl.constexpr,
):  # fmt: skip
    """The section with the border, low..high, what lies above it and what is wanted."""
    part = tl.arange(0, PARTS)
    side = tl.arange(0, SIDES)
    found = tl.load(
        weighed + (row * parts + part)[:, None] * SIDES + side[None, :],
        mask=(part < parts)[:, None] & (side >= 0)[None, :], other=0.0,
    )  # fmt: skip
    found = tl.sum(found, 0)
    piece = tl.arange(0, PIECES)
    total = tl.sum(tl.load(sums + row * pieces + piece, mask=piece < pieces, other=0.0), 0)
    wanted = tl.where(top_k > 0, top_k.to(tl.float64), top_p.to(tl.float64) * total)
    is_enough = found >= wanted
    cut = tl.load(cuts + row * SIDES + side)
    low = tl.max(tl.where(is_enough, cut, LOWEST), 0)
    over = tl.max(tl.where(is_enough, 0.0, found), 0)
    high = ordered(largest) + 1
    both = (top_k > 0) & (top_p < 1)
    # With both filters all from here on are looked at again: top-p is about what top-k keeps.
    high = tl.where(both, high, tl.min(tl.where(is_enough, high, cut), 0))
    return low, high, tl.where(both, 0.0, over), wanted


@triton.jit
def list_section(
    logits, words, ints, maxima, cuts, weighed, sums, counts, near, size, pieces, stride,
    PIECES: tl.constexpr, PARTS: tl.constexpr, LISTED: tl.constexpr, PDL: tl.constexpr,
    PART: tl.constexpr = PART, PIECE: tl.constexpr = PIECE, WORDS: tl.constexpr = WORDS,
    SIDES: tl.constexpr = SIDES,
):  # fmt: skip
    """Copy the logits of the section together, in any order."""
    release(PDL)
    wait(PDL)
    row = tl.program_id(0)
    is_asked, largest, top_k, top_p = _asked(
        words, ints, maxima, row, size, pieces, PIECES, WORDS
    )  # fmt: skip
    if is_asked:
        low, high, _over, _wanted = _section(
            cuts, weighed, sums, row, tl.num_programs(1), pieces, largest, top_k, top_p,
            PARTS, PIECES, SIDES,
        )  # fmt: skip
        piece = tl.program_id(1) * PART + tl.arange(0, PART)
        own = tl.load(maxima + row * pieces + piece, mask=piece < pieces, other=float("-inf"))
        if (high.to(tl.int64) - low > 1) & (tl.max(ordered(own), 0) >= low):
            values, column, _piece = piece_of(logits, stride, size, PART, PIECE)
            values = tl.reshape(values, [PART * PIECE])
            whole = ordered(values)
            fits = (whole >= low) & (whole < high) & (tl.reshape(column, [PART * PIECE]) < size)
            behind = tl.cumsum(fits.to(tl.int32), 0)
            number = tl.sum(fits.to(tl.int32), 0)
            place = behind - 1 + tl.atomic_add(counts + row, number, sem="relaxed")
            tl.store(near + row.to(tl.int64) * LISTED + place, values, mask=fits & (place < LISTED))


@triton.jit
def _weigh_row(logits, size, low, largest, scale, IS_COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """The number or the weight (in units) of a row's logits from ``low`` on."""
    found = tl.zeros([BLOCK], tl.int64)
    start = 0
    while start < size:
        at = start + tl.arange(0, BLOCK)
        values = tl.load(logits + at, mask=at < size, other=float("-inf"))
        is_over = (ordered(values) >= low) & (at < size)
        if IS_COUNT:
            found += is_over.to(tl.int64)
        else:
            found += tl.where(is_over, _units(values, largest, scale), 0)
        start += BLOCK
    return tl.sum(found, 0)


@triton.jit
def _units(values, largest, scale):
    """Weights as whole numbers."""
    return (tl.exp((values - largest) * scale).to(tl.float64) * _UNIT).to(tl.int64)


@triton.jit
def _border(
    logits, size, own, units, low, high, wanted, largest, scale, is_short,
    IS_COUNT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The highest border in low..high whose upper side has what is wanted; ``low`` has it."""
    low = low.to(tl.int64)
    high = high.to(tl.int64)
    while high - low > 1:
        middle = low + (high - low) // 2
        at = middle.to(tl.int32)
        if is_short:
            found = tl.sum(tl.where(own >= at, units, 0), 0)
        else:
            found = _weigh_row(logits, size, at, largest, scale, IS_COUNT, BLOCK)
        is_enough = found >= wanted
        low = tl.where(is_enough, middle, low)
        high = tl.where(is_enough, high, middle)
    return low.to(tl.int32)


@triton.jit
def find_borders(
    logits, words, ints, maxima, cuts, weighed, sums, counts, near, borders,
    size, pieces, stride, parts,
    PIECES: tl.constexpr, PARTS: tl.constexpr, LISTED: tl.constexpr, PDL: tl.constexpr,
    WORDS: tl.constexpr = WORDS, SMALLEST: tl.constexpr = SMALLEST, SIDES: tl.constexpr = SIDES,
    BLOCK: tl.constexpr = 4096,
):  # fmt: skip
    """The border of each row; where a section has too many logits, the row is read again."""
    release(PDL)
    wait(PDL)
    row = tl.program_id(0)
    is_asked, largest, top_k, top_p = _asked(
        words, ints, maxima, row, size, pieces, PIECES, WORDS
    )  # fmt: skip
    border = tl.full([], -2147483648, tl.int32)
    if is_asked:
        low, high, over, wanted = _section(
            cuts, weighed, sums, row, parts, pieces, largest, top_k, top_p, PARTS, PIECES, SIDES
        )  # fmt: skip
        scale = scale_of(tl.load(words + row * WORDS), SMALLEST)
        count = tl.where(high.to(tl.int64) - low > 1, tl.load(counts + row), 0)
        is_short = count <= LISTED
        over = tl.where(is_short, over, 0.0)
        i = tl.arange(0, LISTED)
        values = tl.load(near + row.to(tl.int64) * LISTED + i, mask=i < count, other=float("-inf"))
        whole = tl.where(i < count, ordered(values), -2147483648)
        logits += row.to(tl.int64) * stride
        if top_k > 0:
            low = _border(
                logits, size, whole, (i < count).to(tl.int64), low, high,
                (wanted - over).to(tl.int64), largest, scale, is_short, True, BLOCK,
            )  # fmt: skip
        if top_p < 1:
            units = _units(values, largest, scale)
            part = wanted - over
            if top_k > 0:
                if is_short:
                    part = tl.sum(tl.where(whole >= low, units, 0), 0).to(tl.float64)
                else:
                    part = _weigh_row(logits, size, low, largest, scale, False, BLOCK).to(
                        tl.float64
                    )
                part = top_p.to(tl.float64) * (part / _UNIT)
            low = _border(
                logits, size, whole, units, low, high, tl.ceil(part * _UNIT).to(tl.int64),
                largest, scale, is_short, False, BLOCK,
            )  # fmt: skip
        border = low
    tl.store(borders + row, border)
