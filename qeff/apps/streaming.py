"""Text as it is made, in the order of the prompts.

The first unfinished prompt's text is written at once; what others get meanwhile waits for its turn.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


class InOrder:
    """A listener that writes to stdout; several prompts are each written above their text."""

    def __init__(self, prompts: Sequence[str]) -> None:
        self._prompts = list(prompts)
        self._waiting = [""] * len(prompts)
        self._is_done = [False] * len(prompts)
        self._turn = -1
        self._next()

    def __call__(self, index: int, piece: str, is_last: bool) -> None:
        self._waiting[index] += piece
        self._is_done[index] = is_last
        while self._turn < len(self._prompts):
            self._write(self._waiting[self._turn])
            self._waiting[self._turn] = ""
            if not self._is_done[self._turn]:
                return
            self._next()

    def _next(self) -> None:
        if self._turn >= 0:
            self._write("\n" if len(self._prompts) == 1 else "\n\n")
        self._turn += 1
        if len(self._prompts) > 1 and self._turn < len(self._prompts):
            self._write(f"> {self._prompts[self._turn]}\n")

    def _write(self, text: str) -> None:
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()
