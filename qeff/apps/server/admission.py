"""The bounded queue before the engines: how many requests may be in the server at once.

What does not fit is refused at once, with an estimate of when to come back; so is everything while
the server drains. The order of those that are in is the engines' own business.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from qeff.apps.server.errors import ApiError, bad_request, draining

OVERLOADED = "rate_limit_error"
MAX_RETRY_S = 120
_MEMORY = 0.9  # how much of the estimate stays when a request ends


class Place:
    """A request's place in the server."""

    def __init__(self, count: int, num_tokens: int) -> None:
        self.count = count
        self.num_tokens = num_tokens
        self.entered_at = time.monotonic()
        self.is_started = False

    def started(self) -> None:
        """Its first token came: it waits no more."""
        self.is_started = True


class Admission:
    """Counts the outputs that are in the server, and refuses what is too much.

    Args:
        max_running: Outputs that the engines make at the same time.
        max_waiting: Outputs that may wait for that.
    """

    def __init__(self, max_running: int, max_waiting: int) -> None:
        self.max_running = max_running
        self.max_waiting = max_waiting
        self.is_draining = False
        self.num_refused = 0
        self._places: set[Place] = set()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._tokens_per_s = 0.0  # asked for by those that ended, by the time they took; estimated

    @property
    def num_inside(self) -> int:
        return sum(place.count for place in self._places)

    @asynccontextmanager
    async def place(self, num_tokens: int, count: int = 1) -> AsyncIterator[Place]:
        """Hold a place for a request of ``count`` outputs and at most ``num_tokens`` tokens.

        Raises ApiError: 429 when the queue is full, 503 while the server drains.
        """
        self._check(count)
        place = Place(count, num_tokens)
        self._places.add(place)
        self._is_empty.clear()
        try:
            yield place
        finally:
            self._places.remove(place)
            self._learn(place)
            if not self._places:
                self._is_empty.set()

    def drain(self) -> None:
        """Let nothing in any more."""
        self.is_draining = True

    async def empty(self) -> None:
        """Wait until nobody is inside."""
        await self._is_empty.wait()

    def retry_after_s(self) -> int:
        """When a quarter of what waits should have its turn, by the speed of those that ended."""
        if not self._tokens_per_s:
            return 1
        waiting = sum(place.num_tokens for place in self._places if not place.is_started)
        speed = self._tokens_per_s * self.max_running
        return min(MAX_RETRY_S, max(1, math.ceil(waiting / 4 / speed)))

    def _learn(self, place: Place) -> None:
        if place.is_started:
            rate = place.num_tokens / max(time.monotonic() - place.entered_at, 1e-3)
            memory = _MEMORY if self._tokens_per_s else 0.0
            self._tokens_per_s = memory * self._tokens_per_s + (1 - memory) * rate

    def _check(self, count: int) -> None:
        most = self.max_running + self.max_waiting
        if self.is_draining:
            self.num_refused += 1
            raise draining()
        if count > most:
            raise bad_request(
                f"The request asks for {count} outputs, and the server takes {most} at most.", "n"
            )
        if self.num_inside + count > most:
            self.num_refused += 1
            raise ApiError(
                429,
                f"The server is busy: {self.num_inside} outputs are running or waiting.",
                OVERLOADED,
                code="queue_full",
                headers={"Retry-After": str(self.retry_after_s())},
            )
