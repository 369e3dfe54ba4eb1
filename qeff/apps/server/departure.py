"""Notices that a client went away, and ends the work that was done for it.

Knows nothing of what the work is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.requests import Request

from qeff.apps.server.errors import ApiError

Answer = TypeVar("Answer")
CLIENT_GONE = 499  # nobody reads it; logs and metrics do


async def while_connected(request: Request, work: Awaitable[Answer]) -> Answer:
    """The result of some work, which is cancelled when the client closes its connection."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(departed(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ApiError(CLIENT_GONE, "The client closed the connection.")
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def departed(request: Request) -> None:
    """Return when the client has gone; the request's body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
