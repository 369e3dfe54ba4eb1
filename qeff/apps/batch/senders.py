"""How a request of a batch reaches the routes: in this process, or over the network.

Both give the status, the request's id and the body. Know nothing of files and lines.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from qeff.apps.load.client import Address, ConnectionLost, request

Message = MutableMapping[str, Any]
App = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Awaitable[None],
]


@dataclass(frozen=True, slots=True)
class Reply:
    """What a route answered."""

    status: int
    request_id: str
    body: Any
    retry_after_s: float | None = None


class Sender(Protocol):
    """A way to the routes."""

    async def post(self, url: str, body: dict[str, Any]) -> Reply:
        """Ask, and wait for the whole answer."""


@dataclass(frozen=True, slots=True)
class InProcess:
    """Calls an ASGI application as a web server would."""

    app: App

    async def post(self, url: str, body: dict[str, Any]) -> Reply:
        """As the protocol says."""
        payload = json.dumps(body).encode()
        headers: dict[str, str] = {}
        status, parts, is_sent = 0, [], False

        async def receive() -> Message:
            nonlocal is_sent
            if is_sent:
                await asyncio.Event().wait()  # this client never goes away
            is_sent = True
            return {"type": "http.request", "body": payload, "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers.update({k.decode().lower(): v.decode() for k, v in message["headers"]})
            else:
                parts.append(message.get("body", b""))

        answering = asyncio.ensure_future(self.app(_scope(url, len(payload)), receive, send))
        try:
            await asyncio.wait({answering})
        finally:
            answering.cancel()
        if not status:
            answering.result()  # raises why there is no answer; with one, the app has told it
        return _reply(status, headers, b"".join(parts))


@dataclass(frozen=True, slots=True)
class Remote:
    """Asks a running server; ConnectionLost when it does not answer."""

    address: Address
    headers: dict[str, str] = field(default_factory=dict)
    timeout_s: float = 3600.0

    async def post(self, url: str, body: dict[str, Any]) -> Reply:
        """As the protocol says."""
        asking = request(self.address, "POST", url, body=body, headers=self.headers)
        try:
            async with asyncio.timeout(self.timeout_s), asking as reply:
                return _reply(reply.status, reply.headers, await reply.read())
        except TimeoutError as error:
            raise ConnectionLost(
                f"{self.address} gave no answer in {self.timeout_s:g} s"
            ) from error


def _reply(status: int, headers: Any, text: bytes) -> Reply:
    try:
        body = json.loads(text)
    except ValueError:
        body = text.decode("utf-8", "replace")
    after = headers.get("retry-after", "")
    seconds = float(after) if after.isdigit() else None
    return Reply(status, headers.get("x-request-id", ""), body, seconds)


def _scope(url: str, num_bytes: int) -> Message:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": url,
        "raw_path": url.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [
            (b"host", b"localhost"),
            (b"content-type", b"application/json"),
            (b"content-length", str(num_bytes).encode()),
        ],
        "client": None,
        "server": None,
    }
