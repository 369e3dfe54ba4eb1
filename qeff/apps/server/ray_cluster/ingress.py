"""Lets requests in on Ray, and passes each on to the worker that is best for it.

The log, names, keys and bodies are checked here as everywhere, so that what is refused reaches no
worker; the answers are the worker's own. Knows nothing of models.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qeff.apps.server.body import WITH_BODY
from qeff.apps.server.config import ServerConfig
from qeff.apps.server.errors import SERVER_ERROR, ApiError
from qeff.apps.server.guards import guarded
from qeff.apps.server.journal import Journal
from qeff.apps.server.large import beside
from qeff.apps.server.ray_cluster.driving import is_last
from qeff.apps.server.ray_cluster.forwarded import REQUEST_ID, Forwarded, request_id
from qeff.apps.server.replies import reply
from qeff.apps.server.sse import failure
from qeff.core.progress import log

EVENTS = b"text/event-stream"


class Ingress:
    """A deployment that is called with HTTP requests.

    Args:
        workers: The deployment of the workers.
        config: The server's.
    """

    def __init__(self, workers: DeploymentHandle, config: ServerConfig) -> None:
        self._front = Front(workers, config)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """What Ray gives the requests to."""
        return self._front


class Front:
    """An ASGI application whose answers come from the workers."""

    def __init__(self, workers: DeploymentHandle, config: ServerConfig) -> None:
        self._workers = workers.options(stream=True)
        self._app = guarded(self._forward, config, Journal(config.log_format))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http":
            scope["headers"] = [(bytes(name), bytes(value)) for name, value in scope["headers"]]
            if (given := request_id(scope["headers"])) is not None:
                scope["qeff.id"] = given
            await self._app(scope, receive, _without_id(send))
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["qeff.elsewhere"] = True  # the worker writes the line of the log
        body = (await receive())["body"] if scope["method"] in WITH_BODY else b""
        asked = await beside(len(body), Forwarded.of, scope, body)
        gone = asyncio.ensure_future(_departed(receive))
        relay = Relay(self._workers.answer.remote(asked), send, asked.path)
        passing = asyncio.ensure_future(relay.run())
        try:
            await asyncio.wait({gone, passing}, return_when=asyncio.FIRST_COMPLETED)
            if passing.done():
                passing.result()
        finally:
            relay.stop()
            gone.cancel()
            passing.cancel()
            await asyncio.gather(gone, passing, return_exceptions=True)


class Relay:
    """Passes a worker's answer on to the client.

    Args:
        messages: Those of the worker, from Ray, some at a time.
        send: Where they go.
        path: Of the request, which decides the shape of errors.
    """

    def __init__(self, messages: Any, send: Send, path: str) -> None:
        self._messages = messages
        self._send = send
        self._path = path
        self._has_begun = False
        self._is_done = False
        self._is_stream = False

    async def run(self) -> None:
        """Send all of it; where the worker fails, an error that says so."""
        try:
            async for messages in self._messages:
                for message in messages:
                    await self._pass(message)
        except (RayError, RayServeException) as error:
            if self._is_done:
                return
            log.error("a worker did not answer: %s", str(error).strip().rpartition("\n")[2])
            await self._fail(_no_worker())

    def stop(self) -> None:
        """End the worker's part, where it is not done."""
        if not self._is_done:
            self._messages.cancel()

    async def _pass(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._has_begun = True
            self._is_stream = any(
                name == b"content-type" and value.startswith(EVENTS)
                for name, value in message["headers"]
            )
        self._is_done = is_last(message)
        await self._send(message)

    async def _fail(self, error: ApiError) -> None:
        if not self._has_begun:
            await reply(error, {"type": "http", "path": self._path}, _nothing, self._send)
        elif self._is_stream:
            body = failure(error, self._path)
            await self._send({"type": "http.response.body", "body": body})
        else:
            raise error  # what was sent is not whole, and the connection ends so
        self._is_done = True


def _no_worker() -> ApiError:
    return ApiError(
        503,
        "The replica that had the request ended; ask again.",
        SERVER_ERROR,
        code="unavailable",
        headers={"Retry-After": "1"},
    )


def _without_id(send: Send) -> Callable[[Message], Awaitable[None]]:
    """Sends all but the request's id, which Ray's proxy sends too."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [pair for pair in message.get("headers", ()) if pair[0] != REQUEST_ID]
            message = {**message, "headers": headers}
        await send(message)

    return sending


async def _departed(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


async def _live(receive: Receive, send: Send) -> None:
    """There is nothing to open or to close."""
    for kind in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{kind}.complete"})
