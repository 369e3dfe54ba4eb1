"""The sizes that a step is padded to, so that few different ones are captured.

Small steps and decodes have fixed sizes. A larger step is padded to whole tiles of a product, its
spans and rows to the next of a few numbers; a prompt that fills its tiles is not padded at all.
Knows nothing of arrays or graphs.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from qeff.backends.cuda.session.cache import BLOCK_LEN

DECODES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512)
SMALL = (1, 2, 4, 8, 16, 24, 32, 48, 64)  # tokens of other steps
LARGE_STEP = 128  # tokens that larger steps are padded to a multiple of
MEDIUM, MEDIUM_STEP = 1024, 64  # up to so many tokens it is this
LEAST_REACH = 256  # cache rows; kernels are made for such a number, doubled as often as needed
LEAST_LARGE_REACH = 1024  # the same for larger steps, times four as often as needed


@dataclass(frozen=True, slots=True)
class Extent:
    """How many of everything a step has."""

    tokens: int
    spans: int
    rows: int
    longest: int  # cache rows that a token sees at most
    is_decode: bool  # one token for each span
    is_same: bool  # the rows are the tokens, in order


@dataclass(frozen=True, slots=True)
class Padded:
    """How many there are with padding; the step is captured as small, as large, or not."""

    tokens: int
    spans: int
    rows: int
    reach: int
    is_small: bool = False
    is_large: bool = False


def pad(extent: Extent, ctx_len: int, most_rows: int) -> Padded:
    """The sizes to run a step with.

    ``most_rows`` are the rows of the largest captured one of more than small size.
    """
    reach = reach_of(extent.longest, ctx_len)
    is_whole = extent.is_decode and extent.is_same
    size = bucket(extent.tokens, DECODES if is_whole else SMALL)
    if size is not None:
        return Padded(size, size, size, reach, is_small=True)
    plain = Padded(extent.tokens, extent.spans, extent.rows, reach)
    reach = reach_of(extent.longest, ctx_len, LEAST_LARGE_REACH, 4)
    # Padding is a sequence of its own, which has to fit into a table.
    step = min(MEDIUM_STEP if extent.tokens <= MEDIUM else LARGE_STEP, reach)
    tokens = round_up(extent.tokens, step)
    rows = tokens if extent.is_same else row_size(extent.rows)
    if rows > most_rows:
        return plain
    return Padded(tokens, _spans(extent, tokens), rows, reach, is_large=True)


def _spans(extent: Extent, tokens: int) -> int:
    """Spans with those of padding; a prompt alone stays alone."""
    if extent.is_decode:
        return tokens
    needed = extent.spans + (tokens > extent.tokens)
    return needed if needed == 1 else row_size(needed)


def row_size(count: int) -> int:
    """The number of rows, or spans, that so many are padded to."""
    if not count:
        return 0
    size = bucket(count, DECODES)
    return round_up(count, LARGE_STEP) if size is None else size


def reach_of(longest: int, ctx_len: int, least: int = LEAST_REACH, factor: int = 2) -> int:
    """An upper bound of the rows that a token sees, one of few numbers."""
    reach = least
    while reach < longest:
        reach *= factor
    return min(reach, round_up(max(ctx_len, longest), BLOCK_LEN))


def bucket(count: int, sizes: tuple[int, ...]) -> int | None:
    """The smallest size that holds so many."""
    at = bisect_left(sizes, count)
    return sizes[at] if at < len(sizes) else None


def round_up(count: int, step: int) -> int:
    """The next multiple."""
    return -(-count // step) * step
