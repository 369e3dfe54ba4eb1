"""Which names of a server a request may use.

A server that only this machine reaches, and that wants no key, answers only to the names of this
machine: otherwise a web page from anywhere could have its own name point here and read along.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from qeff.apps.server.access import is_loopback
from qeff.apps.server.errors import ApiError
from qeff.apps.server.replies import reply


class HostCheck:
    """ASGI middleware that answers 403 to other names."""

    def __init__(self, app: ASGIApp, allowed: frozenset[str]) -> None:
        self._app = app
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            name = host_name(Headers(scope=scope).get("host", ""))
            if name and not is_loopback(name) and name not in self._allowed:
                await reply(_refusal(name), scope, receive, send)
                return
        await self._app(scope, receive, send)


def host_name(host: str) -> str:
    """The name in a Host header, without its port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()


def _refusal(name: str) -> ApiError:
    return ApiError(
        403,
        f"This server does not answer to the name {name!r:.100}; start it with --allowed-host or"
        " with an API key.",
        "permission_error",
        code="unknown_host",
    )
