"""Steps that stand for all that a session may meet: one for each size that its kernels know.

They are given largest first, so that memory which steps share is asked for once. What they hold has
no meaning, and what they write goes into the block of padding. Knows nothing of kernels or graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from qeff.backends.cuda.session import padding
from qeff.backends.cuda.session.cache import BLOCK_LEN
from qeff.runtime.session import CHOICE, GREEDY, Batch, Capabilities, Span

# A row's token: the likeliest, drawn, drawn from some; or none, and the logits go to the host.
_CHOICES = (GREEDY, (1.0, 1.0, 0.0, 0, (0, 0), 0), (1.0, 0.5, 0.0, 8, (0, 0), 0))


@dataclass(frozen=True, slots=True)
class Trial:
    """A step of so many tokens, evenly in so many spans; the last token of some is asked for."""

    tokens: int
    spans: int
    rows: int
    longest: int  # cache rows that a token might see
    choice: tuple[object, ...] | None

    def batch(self, block: int) -> Batch:
        """The step, in one block of the cache."""
        ends = np.arange(1, self.spans + 1) * self.tokens // self.spans
        starts = np.concatenate([[0], ends[:-1]])
        longest = int((ends - starts).max())
        blocks = (block,) * -(-longest // BLOCK_LEN)
        owners = np.repeat(np.arange(self.spans), ends - starts)
        return Batch(
            tokens=np.zeros(self.tokens, np.int64),
            positions=np.arange(self.tokens) - starts[owners],
            spans=tuple(map(Span, starts.tolist(), ends.tolist(), (blocks,) * self.spans)),
            logit_rows=(ends - 1)[: self.rows],
            choices=None if self.choice is None else np.array([self.choice] * self.rows, CHOICE),
        )


def kinds(steps: Sequence[Trial]) -> Iterator[Trial]:
    """Those of some steps that differ in their kernels: one of a size, and one of a choice."""
    seen: set[object] = set()
    for step in steps:
        size = replace(step, choice=None)
        if not {size, step.choice} <= seen:
            seen |= {size, step.choice}
            yield step


def trials(caps: Capabilities) -> list[Trial]:
    """Every step that has kernels, or is captured, for its own size."""
    choices = _CHOICES if caps.chooses else (None,)
    return list(dict.fromkeys([*_large(caps, choices[0]), *_small(caps, choices)]))


def _small(caps: Capabilities, choices: Sequence[tuple[object, ...] | None]) -> Iterator[Trial]:
    """Decodes, and other steps of few tokens."""
    most_decodes = padding.bucket(caps.max_sequences, padding.DECODES) or padding.DECODES[-1]
    for reach in _reaches(caps, padding.LEAST_REACH, 2):
        for choice in choices:
            for size in reversed(padding.DECODES):
                if size <= most_decodes:
                    yield Trial(size, size, size, reach, choice)
            for size in reversed(padding.SMALL):
                spans = -(-size // caps.max_step_tokens)
                if spans < size <= _most_tokens(caps):
                    yield Trial(size, spans, spans, reach, choice)


def _large(caps: Capabilities, choice: tuple[object, ...] | None) -> Iterator[Trial]:
    """Prompts, and prompts beside decodes."""
    most, step = caps.max_sequences, padding.LARGE_STEP
    tokens = min(most + max(caps.max_step_tokens, caps.quick_tokens or 0), _most_tokens(caps))
    reaches = _reaches(caps, padding.LEAST_LARGE_REACH, 4)
    while tokens > padding.SMALL[-1]:  # tokens decide how the pairs of experts are sorted
        whole = max(tokens - tokens % step, min(tokens, step))
        spans = -(-whole // caps.max_step_tokens)
        for rows in (spans, 0):
            yield Trial(whole, spans, rows, reaches[0], choice)
        tokens //= 2
    sizes = {min(padding.row_size(count), most) for count in range(1, most + 1)}
    for reach in reaches:  # spans and rows decide how attention is cut
        if most > padding.DECODES[-1]:
            yield Trial(most, most, most, reach, choice)
        for spans in sorted(sizes, reverse=True):
            whole = padding.round_up(max(spans, padding.SMALL[-1]) + 1, step)
            for size in (whole, whole - 1) if spans == most else (whole,):  # with padding and not
                if size <= spans * caps.max_step_tokens:
                    yield Trial(size, spans, spans, reach, choice)


def _most_tokens(caps: Capabilities) -> int:
    return caps.max_sequences * caps.max_step_tokens


def _reaches(caps: Capabilities, least: int, factor: int) -> list[int]:
    """The bounds of what a token sees, the widest first."""
    found = [padding.reach_of(1, caps.ctx_len, least, factor)]
    while found[0] < caps.ctx_len:
        found.insert(0, padding.reach_of(found[0] + 1, caps.ctx_len, least, factor))
    return found
