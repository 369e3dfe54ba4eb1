"""Event streams: pieces of an answer as they are made, over one HTTP response.

What an answer gives is taken at once, whatever the client does: a slow one holds up itself alone,
and gets what has gathered in larger pieces. A client that goes away ends the generation.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from qeff.apps.server.departure import departed, while_connected
from qeff.apps.server.errors import ANTHROPIC_PATH, SERVER_ERROR, ApiError, body_of, from_qeff
from qeff.core.errors import QeffError
from qeff.core.progress import log

DONE = b"data: [DONE]\n\n"
HEARTBEAT = b": still here\n\n"
HEARTBEAT_S = 15.0
STALL_S = 120.0  # how long a client may leave its connection full
PATIENCE_S = 10.0  # how long headers wait for the first event, so that errors have their status


def event(data: Any, name: str | None = None) -> bytes:
    """One event; ``data`` is written as JSON."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {text}\n\n".encode()


async def respond(request: Request, events: AsyncIterator[bytes]) -> Response:
    """The response that sends these events; an error before the first of them is raised."""
    stream = EventStream(request, events)
    try:
        await while_connected(request, stream.begun())
    except BaseException:
        await stream.stop()
        raise
    return stream


class EventStream(Response):
    """Takes events as they come and sends them as the client reads them."""

    media_type = "text/event-stream"

    def __init__(self, request: Request, events: AsyncIterator[bytes]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._request = request
        self._events = events
        self._unsent: list[bytes] = []
        self._has_news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._sent_at = self._loop.time()
        self._sending_since: float | None = None  # while the client does not take what is sent
        self._taking = asyncio.create_task(self._take())

    async def begun(self) -> None:
        """Wait for the first event, as long as a client can do without headers."""
        waiting = asyncio.ensure_future(self._has_news.wait())
        try:
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.wait({waiting, self._taking}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            return
        finally:
            waiting.cancel()
        if self._taking.done() and not self._unsent:
            self._taking.result()  # raises what went wrong

    async def stop(self) -> None:
        """End the generation."""
        self._taking.cancel()
        await asyncio.gather(self._taking, return_exceptions=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(departed(self._request))
        sending = asyncio.ensure_future(self._send(send))
        watching = asyncio.ensure_future(self._look_after())
        tasks = {gone, sending, watching}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.stop()

    async def _take(self) -> None:
        try:
            async with aclosing(self._events) as events:  # type: ignore[type-var]
                async for piece in events:
                    self._unsent.append(piece)
                    self._has_news.set()
        finally:
            self._has_news.set()

    def _ending(self) -> bytes:
        """What a stream ends with when it broke off; its status is sent, so this is all."""
        error = self._taking.exception()
        if error is None:
            return b""
        if not isinstance(error, ApiError | QeffError):
            log.error("a stream broke off", exc_info=error)
            error = ApiError(500, "The server made a mistake; its log says more.", SERVER_ERROR)
        return failure(error, self._request.url.path)

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        while True:
            is_last = self._taking.done()
            if is_last:
                self._unsent.append(self._ending())
            body = b"".join(self._unsent)
            self._unsent.clear()
            if body:
                self._sending_since = self._loop.time()
                await send({"type": "http.response.body", "body": body, "more_body": True})
                self._sending_since, self._sent_at = None, self._loop.time()
            if is_last:
                break
            await self._has_news.wait()
            self._has_news.clear()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _look_after(self) -> None:
        """Beat where nothing is sent; end when the client has not read for too long."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            now = self._loop.time()
            if self._sending_since is not None:
                if now - self._sending_since > STALL_S:
                    return
            elif now - self._sent_at >= HEARTBEAT_S:
                self._unsent.append(HEARTBEAT)
                self._has_news.set()


def failure(error: ApiError | QeffError, path: str) -> bytes:
    """The events that end a stream which broke off, in the protocol of its path."""
    known = error if isinstance(error, ApiError) else from_qeff(error)
    body = body_of(known, path)
    if path.startswith(ANTHROPIC_PATH):
        return event(body, "error")
    return event(body) + DONE
