"""Drives an ASGI application from within its process: requests in, messages out as they are made.

A reader that goes away before the end is a client that hung up. Knows nothing of where requests
come from.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from qeff.apps.server.ray_cluster.forwarded import Forwarded
from qeff.core.errors import ResourceError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message

LEAVE_S = 5.0  # how long an application may take to notice that its client has gone


async def answer(app: ASGIApp, asked: Forwarded) -> AsyncIterator[list[Message]]:
    """The messages of the response, those together that came together, so that few are sent.

    Leaving the loop early tells the application that its client has gone. Raises what the
    application raises, unless its response was complete by then.
    """
    sent: asyncio.Queue[Message | None] = asyncio.Queue()
    has_gone = asyncio.Event()
    is_asked = False

    async def receive() -> Message:
        nonlocal is_asked
        if is_asked:
            await has_gone.wait()
            return {"type": "http.disconnect"}
        is_asked = True
        return {"type": "http.request", "body": asked.body, "more_body": False}

    async def send(message: Message) -> None:
        sent.put_nowait(message)

    is_complete = False
    work = asyncio.ensure_future(app(asked.scope(), receive, send))
    work.add_done_callback(lambda _: sent.put_nowait(None))
    try:
        while not work.done() or not sent.empty():
            found = [await sent.get()]
            while not sent.empty():
                found.append(sent.get_nowait())
            if messages := [message for message in found if message is not None]:
                yield messages
                is_complete = is_last(messages[-1])
        if not is_complete:
            work.result()
    finally:
        has_gone.set()
        await _ended(work)


def is_last(message: Message) -> bool:
    """Whether a response ends with this message."""
    return message["type"] == "http.response.body" and not message.get("more_body", False)


async def _ended(work: asyncio.Future[None]) -> None:
    """Let the application end by itself, and end it where it does not."""
    await asyncio.wait({work}, timeout=LEAVE_S)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


class Life:
    """The lifespan of an ASGI application.

    Args:
        app: Not started yet.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._told: asyncio.Queue[Message] = asyncio.Queue()
        self._said: asyncio.Queue[Message] = asyncio.Queue()
        self._living: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Return when the application has started; ResourceError where it cannot."""
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
        self._living = asyncio.ensure_future(self._app(scope, self._told.get, self._said.put))
        message = await self._tell("lifespan.startup")
        if message["type"] != "lifespan.startup.complete":
            raise ResourceError(message.get("message") or "the server could not start")

    async def stop(self) -> None:
        """Return when the application has put everything away."""
        if self._living is not None and not self._living.done():
            await self._tell("lifespan.shutdown")
            await self._living

    async def _tell(self, kind: str) -> Message:
        """Tell the application something; what it says to that."""
        assert self._living is not None, "told before the start"
        self._told.put_nowait({"type": kind})
        saying = asyncio.ensure_future(self._said.get())
        both: set[asyncio.Future[Any]] = {saying, self._living}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if saying.done():
            return saying.result()
        saying.cancel()
        self._living.result()  # raises what ended it
        return {"type": f"{kind}.failed"}
