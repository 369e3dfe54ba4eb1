"""The way in, open from the first moment: the model is opened first, then the routes are loaded.

A request that comes before the routes are there waits for them, which takes less than a second;
health and readiness are answered at once. Knows nothing of what routes do.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from qeff.apps.server.measures import sample
from qeff.apps.server.state import State
from qeff.core.errors import QeffError
from qeff.core.progress import log

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

STATUS_PATHS = frozenset({"/health", "/ready"})


class Entrance:
    """ASGI application around the one that has the routes.

    Args:
        state: The server's.
        on_failure: Called when the routes cannot be loaded: nothing could be served.
    """

    def __init__(self, state: State, on_failure: Callable[[], None]) -> None:
        self._state = state
        self._on_failure = on_failure
        self._app: ASGIApp | None = None
        self._loading: asyncio.Task[ASGIApp] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif self._app is not None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http" and scope["path"] in STATUS_PATHS:
            await _answer(send, scope["path"], is_ready=self._state.is_ready)
        else:
            assert self._loading is not None, "a request before the start"
            app = await asyncio.shield(self._loading)
            await app(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Open the default model and begin to load the routes; close everything at the end."""
        state = self._state
        await receive()
        try:
            async with state.models.use(None):
                pass
        except QeffError as error:
            log.error("%s", error)
            await send({"type": "lifespan.startup.failed", "message": error.what})
            return
        self._loading = asyncio.create_task(asyncio.to_thread(_load, state))
        self._loading.add_done_callback(self._on_loaded)
        sampling = asyncio.create_task(sample(state.models, state.gauges))
        await send({"type": "lifespan.startup.complete"})
        await receive()
        sampling.cancel()
        await asyncio.gather(sampling, self._loading, return_exceptions=True)
        await state.models.close()
        await send({"type": "lifespan.shutdown.complete"})

    def _on_loaded(self, loading: asyncio.Task[ASGIApp]) -> None:
        if loading.cancelled():
            return
        if error := loading.exception():
            log.error("the routes cannot be loaded", exc_info=error)
            self._on_failure()
        else:
            self._app = loading.result()


def _load(state: State) -> ASGIApp:
    from qeff.apps.server.app import create_app

    return create_app(state)


async def _answer(send: Send, path: str, *, is_ready: bool) -> None:
    """What the routes of the same paths say."""
    is_well = path == "/health" or is_ready
    word = "ok" if path == "/health" else "ready" if is_ready else "starting"
    headers = [(b"content-type", b"application/json")]
    status = 200 if is_well else 503
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"status": word}).encode()})
