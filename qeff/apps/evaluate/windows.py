"""Which tokens of a text are scored, and what each of them sees: the definition of perplexity here.

The text is cut into windows of ``ctx_len`` tokens, each run alone from an empty cache. Without a
stride, windows stand side by side and the second half of each is scored, as llama.cpp does it. With
a stride, a window begins every ``stride`` tokens and scores what no window before it has scored, as
Hugging Face and QEfficient do it. Knows numbers of tokens, not models.
"""

from __future__ import annotations

from dataclasses import dataclass

from qeff.core.errors import OptionValueError, RequestError


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens ``start`` to ``stop`` of the text; those from ``first`` on are scored."""

    start: int
    stop: int
    first: int

    @property
    def num_scored(self) -> int:
        return self.stop - self.first


def cut(num_tokens: int, ctx_len: int, stride: int | None = None) -> list[Window]:
    """The windows of a text, in order."""
    if ctx_len < 4:
        raise OptionValueError(
            f"windows of {ctx_len} tokens are too short to score", "use a --ctx-len of at least 4"
        )
    return _halves(num_tokens, ctx_len) if stride is None else _sliding(num_tokens, ctx_len, stride)


def _halves(num_tokens: int, ctx_len: int) -> list[Window]:
    """Windows side by side; a rest that fills none is left out."""
    if num_tokens < ctx_len:
        raise RequestError(
            f"the text has {num_tokens} tokens, which do not fill one window of {ctx_len}",
            "give a longer text, a smaller --ctx-len, or a --stride, which also scores the rest",
        )
    starts = range(0, num_tokens - ctx_len + 1, ctx_len)
    return [Window(start, start + ctx_len, start + ctx_len // 2 + 1) for start in starts]


def _sliding(num_tokens: int, ctx_len: int, stride: int) -> list[Window]:
    """A window every ``stride`` tokens until one reaches the end; nothing is scored twice."""
    if stride > ctx_len:
        raise OptionValueError(
            f"a stride of {stride} is larger than the window of {ctx_len} tokens",
            "tokens between the windows would not be scored; lower --stride",
        )
    if num_tokens < 2:
        raise RequestError(f"the text has {num_tokens} tokens", "at least two are needed")
    windows: list[Window] = []
    start, done = 0, 1  # nothing predicts the first token
    while done < num_tokens:
        stop = min(start + ctx_len, num_tokens)
        # The first token of a window is predicted by nothing when windows stand side by side.
        first = max(done, start + 1)
        if first < stop:
            windows.append(Window(start, stop, first))
        start, done = start + stride, stop
    return windows
