"""From the start of a server to its end: the default model is opened and the routes are loaded.

Requests are taken when both are there. Knows nothing of what routes do.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from qeff.apps.server.measures import sample
from qeff.apps.server.state import State
from qeff.core.errors import QeffError
from qeff.core.progress import log

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


class Entrance:
    """ASGI application around the one that has the routes.

    Args:
        state: The server's.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            assert self._app is not None, "a request before the start"
            await self._app(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Open the default model and load the routes; close everything at the end."""
        state = self._state
        await receive()
        try:
            async with state.models.use(None):
                pass
        except QeffError as error:
            log.error("%s", error)
            await send({"type": "lifespan.startup.failed", "message": error.what})
            return
        self._app = _load(state)  # here and not in a thread: nothing else could run meanwhile
        sampling = asyncio.create_task(sample(state.models, state.gauges))
        await send({"type": "lifespan.startup.complete"})
        await receive()
        sampling.cancel()
        await asyncio.gather(sampling, return_exceptions=True)
        await state.models.close()
        await send({"type": "lifespan.shutdown.complete"})


def _load(state: State) -> ASGIApp:
    from qeff.apps.server.app import create_app

    return create_app(state)
