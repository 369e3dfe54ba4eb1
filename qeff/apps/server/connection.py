"""One connection to a server: the head of a request has its time and its size, as its body has.

Uvicorn waits for a head for ever and takes one of any length, from anybody who can connect. Knows
nothing of what requests say.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

PATIENCE_S = 60.0  # how long a head may take to come, from the connection or the last answer on
MAX_HEAD_BYTES = 2**16  # besides those that came with its first bytes


class Connection(HttpToolsProtocol):
    """Uvicorn's protocol with an end to every wait for a head."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._num_head_bytes = 0
        self._waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        super().connection_lost(exc)
        self._wait_no_more()

    def data_received(self, data: bytes) -> None:
        """Read on; refuse a head that is too long."""
        before = self.scope
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._wait_no_more()
        elif self._waiting is None:
            self._wait()
        is_inside = before is not None and before is self.scope and "method" not in before
        self._num_head_bytes = self._num_head_bytes + len(data) if is_inside else 0
        if self._num_head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(PATIENCE_S, self.transport.close)

    def _wait_no_more(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
