"""The log of requests: one line each, as text or as JSON, without what people wrote.

Prompts and outputs are logged only where the server was told to. Every request gets an id, which
its response carries too.
"""

from __future__ import annotations

import json
import sys
import time
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO
from uuid import uuid4

from qeff.apps.server.errors import ANTHROPIC_PATH

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# What the line of the request at hand says besides; filled by whoever knows it.
about: ContextVar[dict[str, Any] | None] = ContextVar("about", default=None)
QUIET_PATHS = frozenset({"/health", "/ready", "/metrics", "/stats"})


@dataclass(slots=True)
class Journal:
    """Where lines go, and which.

    Args:
        form: ``plain``, ``json`` or ``none``.
        with_prompts: Whether prompts and outputs are logged too.
        stream: Where to; stderr when None.
    """

    form: str = "none"
    with_prompts: bool = False
    stream: TextIO | None = None

    def write(self, event: str, **fields: Any) -> None:
        """One line about an event; fields that are None are left out."""
        if self.form == "none":
            return
        known = {name: value for name, value in fields.items() if value is not None}
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        if self.form == "json":
            line = json.dumps({"time": now, "event": event, **known}, ensure_ascii=True)
        else:
            line = " ".join([now, event, *(f"{name}={_plain(v)}" for name, v in known.items())])
        print(line, file=self.stream or sys.stderr, flush=True)

    def note(self, **counts: int) -> None:
        """Add to the numbers in the line of the request at hand."""
        line = about.get()
        if line is not None:
            for name, number in counts.items():
                line[name] = line.get(name, 0) + number

    def said(self, model: str, prompt: str, output: str) -> None:
        """What was asked and answered, where that may be logged."""
        line = about.get() or {}
        self.write("text", id=line.get("id"), model=model, prompt=prompt, output=output)


def _plain(value: Any) -> str:
    text = str(value)
    is_bare = text.isprintable() and text and not set(text) & set(' "=')
    return text if is_bare else json.dumps(text, ensure_ascii=True)


class RequestLog:
    """ASGI middleware: an id for every request, and a line when it is done.

    A request that has an id in its scope keeps it. One that another process answered, which is
    noted in its scope too, has its line there.
    """

    def __init__(self, app: ASGIApp, journal: Journal) -> None:
        self._app = app
        self._journal = journal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = scope.setdefault("qeff.id", f"req_{uuid4().hex}")
        began = time.perf_counter()
        names = [b"x-request-id"]
        if scope["path"].startswith(ANTHROPIC_PATH):
            names.append(b"request-id")  # where Anthropic's clients look for it
        line: dict[str, Any] = {"id": request_id}
        about.set(line)
        status = 0

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *(pair for pair in message.get("headers", ()) if pair[0] not in names),
                    *((name, request_id.encode()) for name in names),
                ]
            await send(message)

        try:
            await self._app(scope, receive, note)
        finally:
            if scope["path"] not in QUIET_PATHS and not scope.get("qeff.elsewhere"):
                self._journal.write(
                    "request",
                    **line,
                    method=scope["method"],
                    path=scope["path"][:200],
                    status=status,
                    seconds=round(time.perf_counter() - began, 4),
                    client=scope["client"][0] if scope.get("client") else None,
                )
