"""A batch written into the arrays of a step's description, with padding up to their sizes.

Padding tokens belong to sequences of their own, which write into one block that nobody reads.
Plain numpy, and quick: this runs on the host before every step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qeff.backends.cuda.session.step_buffer import Sizes
from qeff.core.errors import RequestError
from qeff.runtime.session import CHOICE, GREEDY, Batch, Span

WORD_BITS = 64
_IDLE = np.array(GREEDY, CHOICE)


@dataclass(frozen=True, slots=True)
class Shape:
    """What follows from the spans of a batch; kept while they stay, as they do in decoding."""

    spans: tuple[Span, ...]
    starts: np.ndarray  # i64 [S]
    counts: np.ndarray
    owners: np.ndarray  # i64 [T]
    rooms: np.ndarray  # cache rows that each span's blocks hold
    tables: np.ndarray  # i32 [S, blocks of the longest]

    @classmethod
    def of(cls, spans: tuple[Span, ...], block_len: int, num_blocks: int) -> Shape:
        """Check the spans of a batch, and read them."""
        end = 0
        for span in spans:
            assert span.start == end < span.stop, f"span {span} leaves a gap or is empty"
            assert span.adapter == 0, "this target has no adapters"
            end = span.stop
        lengths = [len(span.blocks) for span in spans]
        tables = np.zeros((len(spans), max(lengths, default=0)), np.int32)
        for at, span in enumerate(spans):
            tables[at, : lengths[at]] = span.blocks
        assert not tables.size or (tables.min() >= 0 and tables.max() < num_blocks), "no such block"
        starts = np.array([span.start for span in spans], np.int64)
        counts = np.diff(np.append(starts, end))
        owners = np.repeat(np.arange(len(spans)), counts)
        return cls(spans, starts, counts, owners, np.array(lengths) * block_len, tables)

    @property
    def is_decode(self) -> bool:
        """Whether every span has one token."""
        return len(self.spans) == len(self.owners)


def check(batch: Batch, shape: Shape, limits: tuple[int, int]) -> int:
    """Raise for tokens and positions outside the model's tables; give the most rows one sees."""
    num_tokens, num_positions = limits
    tokens, positions = batch.tokens, batch.positions
    assert len(shape.owners) == len(tokens) == len(positions), "the spans do not cover the tokens"
    if not len(tokens):
        return 0
    most = int(tokens.max())
    if most >= num_tokens:
        raise RequestError(f"token id {most} is outside the table of {num_tokens} rows")
    low, high = int(positions.min()), int(positions.max())
    if high >= num_positions or low < 0:
        raise RequestError(
            f"position {low if low < 0 else high} is outside the table of {num_positions} rows"
        )
    ends = positions[shape.starts] + shape.counts
    assert (ends <= shape.rooms).all(), "a span needs more cache rows than its blocks hold"
    return int(ends.max())


def fill(
    arrays: dict[str, np.ndarray], batch: Batch, shape: Shape, sizes: Sizes, spare: int
) -> None:
    """Write the batch; what is beyond it is padding, whose rows are in block ``spare``."""
    num_tokens, num_spans, num_rows = len(batch.tokens), len(batch.spans), len(batch.logit_rows)
    starts, owners = shape.starts, shape.owners
    firsts = batch.positions[starts]
    width = min(sizes.width, shape.tables.shape[1])  # a sequence may hold more than is read
    arrays["tables"][:num_spans, :width] = shape.tables[:, :width]
    arrays["tokens"][:num_tokens] = batch.tokens
    arrays["positions"][:num_tokens] = batch.positions
    arrays["owners"][:num_tokens] = owners
    arrays["slots"][:num_tokens] = (firsts - starts)[owners] + np.arange(num_tokens)
    arrays["starts"][:num_spans] = starts
    arrays["starts"][num_spans:] = num_tokens
    arrays["firsts"][:num_spans] = firsts
    arrays["rows"][:num_rows] = batch.logit_rows
    arrays["rows"][num_rows:] = max(num_tokens - 1, 0)
    if "choices" in arrays and batch.choices is not None:
        choices = arrays["choices"].view(CHOICE).reshape(-1)
        choices[:num_rows] = batch.choices
        choices[num_rows:] = _IDLE
    if "ancestors" in arrays:
        _fill_ancestors(arrays["ancestors"], batch, starts, owners)
    if sizes.tokens > num_tokens:
        _pad(arrays, batch, sizes, spare)


def _pad(arrays: dict[str, np.ndarray], batch: Batch, sizes: Sizes, spare: int) -> None:
    """Padding tokens: one sequence each while there are spans for that, else one for all."""
    num_tokens, num_spans = len(batch.tokens), len(batch.spans)
    count = sizes.tokens - num_tokens
    each = sizes.spans - num_spans >= count and num_spans == num_tokens
    arrays["tokens"][num_tokens:] = 0
    arrays["positions"][num_tokens:] = 0  # there may be tables of few positions
    arrays["tables"][num_spans:] = spare
    arrays["firsts"][num_spans:] = 0
    if each:
        arrays["slots"][num_tokens:] = 0
        arrays["owners"][num_tokens:] = np.arange(num_spans, num_spans + count)
        arrays["starts"][num_spans : num_spans + count] = np.arange(num_tokens, sizes.tokens)
        arrays["starts"][num_spans + count :] = sizes.tokens
    else:
        assert sizes.spans > num_spans, "padding needs a span of its own"
        arrays["slots"][num_tokens:] = np.arange(count)
        arrays["owners"][num_tokens:] = num_spans
        arrays["starts"][num_spans] = num_tokens
        arrays["starts"][num_spans + 1 :] = sizes.tokens
    if "ancestors" in arrays:
        own = np.arange(count) if not each else np.zeros(count, np.int64)
        seen = arrays["ancestors"][num_tokens:]
        seen[:] = 0
        bits = np.uint64(1) << (own % WORD_BITS).astype(np.uint64)
        seen[np.arange(count), own // WORD_BITS] = bits.view(np.int64)


def _fill_ancestors(
    ancestors: np.ndarray, batch: Batch, starts: np.ndarray, owners: np.ndarray
) -> None:
    """Bit i of a token's words: it sees token i of its own span."""
    assert batch.parents is not None, "ancestors are those of a tree"
    words = ancestors.view(np.uint64)
    for token, parent in enumerate(batch.parents):
        own = token - int(starts[owners[token]])
        words[token] = words[parent] if parent >= 0 else 0
        words[token, own // WORD_BITS] |= np.uint64(1) << np.uint64(own % WORD_BITS)


def ancestor_words(batch: Batch) -> int:
    """Words that each token's ancestors take; 0 where the step is no tree."""
    if batch.parents is None:
        return 0
    longest = max((span.stop - span.start for span in batch.spans), default=1)
    return -(-longest // WORD_BITS)


def is_line(batch: Batch) -> bool:
    """Whether every token follows the one before it in its span: no tree after all."""
    if batch.parents is None:
        return True
    expected = np.arange(-1, len(batch.tokens) - 1)
    expected[[span.start for span in batch.spans]] = -1
    return bool(np.array_equal(batch.parents, expected))
