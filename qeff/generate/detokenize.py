"""Token ids to text piece by piece, and the search for strings that end it.

A piece is given out only when later tokens cannot change it: half a character waits for its other
half, and the beginning of a stop string waits until it is one or is not. Joined, the pieces are the
text of all ids. Knows nothing of requests or of where the ids come from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

UNFINISHED = "\ufffd"  # what a decoder writes for bytes that are no character, or not yet one
WINDOW_LEN = 8  # ids after which the beginning of the window is dropped


class Detokenizer:
    """Turns ids into text that never changes once given.

    Decoders treat the first token specially (most drop its space), so ids are decoded together with
    some before them. ``context`` is what came before the first id, such as the prompt.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        *,
        skipped: frozenset[int] = frozenset(),
        context: Sequence[int] = (),
    ) -> None:
        self._decode = decode
        self._skipped = skipped
        self._window = _seed(decode, [token for token in context if token not in skipped])
        self._num_sent = len(decode(self._window)) if self._window else 0
        self._mark = len(self._window)  # ids before it are only there to be decoded beside

    def push(self, token_ids: Sequence[int]) -> str:
        """Add ids; the text that is certain with them."""
        self._window.extend(token for token in token_ids if token not in self._skipped)
        text = self._decode(self._window)
        certain = len(text.rstrip(UNFINISHED))
        piece = text[self._num_sent : certain]
        self._num_sent = max(self._num_sent, certain)
        if certain == len(text) and len(self._window) - self._mark >= WINDOW_LEN:
            self._shift()
        return piece

    def flush(self) -> str:
        """The rest, with marks for bytes that never became a character."""
        piece = self._decode(self._window)[self._num_sent :]
        self._num_sent += len(piece)
        return piece

    def _shift(self) -> None:
        kept = self._window[self._mark :]
        text = self._decode(kept)
        if text:  # else the next piece would be first in the window and lose its space
            self._window, self._num_sent, self._mark = kept, len(text), len(kept)


def _seed(decode: Callable[[Sequence[int]], str], context: list[int]) -> list[int]:
    """The shortest end of the context that decodes to whole characters; none when it is cut."""
    for length in (4, 8, 16):
        tail = context[-length:]
        text = decode(tail) if tail else ""
        if text and UNFINISHED not in text:
            return tail
    return []


class StopMatcher:
    """Finds the stop string that is complete first, whatever pieces the text comes in."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.is_stopped = False

    def push(self, text: str) -> str:
        """Add text; what is certain not to be part of a stop string, up to the stop if it came."""
        assert not self.is_stopped, "text after the stop"
        held = self._held + text
        found = [(held.find(stop) + len(stop), -len(stop)) for stop in self._stops if stop in held]
        if found:
            end, minus_len = min(found)  # complete first; of those, the longest
            self._held, self.is_stopped = "", True
            return held[: end + minus_len]
        keep = max((_overlap(held, stop) for stop in self._stops), default=0)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """What was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of the text that a stop string begins with."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
