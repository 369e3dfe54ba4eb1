"""The engine of a compiled model: opened when it is first used, kept while it is asked for alike.

What successive calls have computed of equal prompts stays in its cache. One engine is open at a
time; for event loops it moves into a thread of its own. Knows nothing of prompts and settings.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qeff.apps.answers import Answerer, text_of_tokenizer
from qeff.apps.opening import Setup
from qeff.container import Container
from qeff.core.errors import RequestError
from qeff.generate import AsyncEngine


@dataclass(frozen=True, slots=True)
class Opening:
    """What an engine is opened from; a tokenizer of transformers, or None for the container's."""

    path: Path
    tokenizer: Any
    setup: Setup

    def is_as(self, other: Opening | None) -> bool:
        """Whether the same engine serves both."""
        return (
            other is not None
            and (self.path, self.setup) == (other.path, other.setup)
            and self.tokenizer is other.tokenizer
        )


class Kept:
    """At most one open engine."""

    def __init__(self) -> None:
        self._opening: Opening | None = None
        self._answerer: Answerer | None = None
        self._in_thread: AsyncEngine | None = None
        self._num_followed = 0  # answers that somebody reads from the thread
        self._lock = threading.Lock()

    def answerer(self, opening: Opening) -> Answerer:
        """The engine for calls that wait for their answers."""
        with self._lock:
            if self._in_thread is not None:
                self._close_idle()
            return self._open(opening)

    def in_thread(self, opening: Opening) -> tuple[AsyncEngine, Answerer]:
        """The engine for an event loop; ``release`` is called once for each time it is taken."""
        with self._lock:
            answerer = self._open(opening)
            if self._in_thread is None:
                if answerer.engine.has_work:
                    raise _busy()
                self._in_thread = AsyncEngine(answerer.engine)
            self._num_followed += 1
            return self._in_thread, answerer

    def release(self) -> None:
        """An answer from the thread is read, or not wanted any more."""
        with self._lock:
            self._num_followed -= 1

    def close(self) -> None:
        """Give memory and threads back; what runs is cancelled."""
        with self._lock:
            self._close()

    def _open(self, opening: Opening) -> Answerer:
        if self._answerer is not None and opening.is_as(self._opening):
            return self._answerer
        self._close_idle()
        container = Container.open(opening.path)
        given = opening.tokenizer
        text = None if given is None else text_of_tokenizer(given, container)
        self._answerer = Answerer(container, setup=opening.setup, text=text)
        self._opening = opening
        return self._answerer

    def _close_idle(self) -> None:
        is_busy = self._num_followed > 0
        if self._answerer is not None and self._in_thread is None:
            is_busy = self._answerer.engine.has_work
        if is_busy:
            raise _busy()
        self._close()

    def _close(self) -> None:
        if self._in_thread is not None:
            self._in_thread.close()  # and the engine with it
        elif self._answerer is not None:
            self._answerer.close()
        self._opening = self._answerer = self._in_thread = None


def _busy() -> RequestError:
    return RequestError(
        "another answer of this model is under way in a way that this call cannot join",
        "read it to its end or close it first; calls with the same tokenizer and speculation, all"
        " stream or all astream, run side by side",
    )
