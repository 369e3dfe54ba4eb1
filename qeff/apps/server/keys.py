"""API keys: who may ask.

Every route but health, readiness and the page's own files wants one of the keys, as
``Authorization: Bearer`` or ``x-api-key``. Keys are compared in constant time and never logged.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from hashlib import sha256

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from qeff.apps.server.errors import ApiError
from qeff.apps.server.replies import reply

OPEN_PATHS = frozenset({"/health", "/ready", "/", "/favicon.ico"})
OPEN_FOLDER = "/page/"  # the page's files; they hold no data


class Keys:
    """The keys of a server; kept as hashes."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._hashes = [_hash(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def find(self, key: str) -> bool:
        """Whether it is one of them; takes as long for any key."""
        given = _hash(key)
        # No early end: how long it takes must not say which key was nearly right.
        return sum(hmac.compare_digest(given, known) for known in self._hashes) > 0


class KeyCheck:
    """ASGI middleware that answers 401 to those without a key."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._keys and not _is_open(scope):
            key = _given_key(Headers(scope=scope))
            if key is None or not self._keys.find(key):
                await reply(_refusal(key), scope, receive, send)
                return
            scope["qeff.key"] = sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
        await self._app(scope, receive, send)


def _is_open(scope: Scope) -> bool:
    path = scope["path"]
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDER)


def _given_key(headers: Headers) -> str | None:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return headers.get("x-api-key")


def _refusal(key: str | None) -> ApiError:
    said = "There is no API key in the request" if key is None else "The API key is not a known one"
    return ApiError(
        401,
        f"{said}; send it as Authorization: Bearer KEY.",
        "authentication_error",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )


def _hash(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()
