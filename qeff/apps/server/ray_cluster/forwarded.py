"""A request on its way to another process, and the text by which its replica is chosen.

Plain values alone, so that sending them is cheap. Knows nothing of Ray but what its router looks
for: an attribute ``prompt`` that is not empty.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from zlib import crc32

if TYPE_CHECKING:
    from starlette.types import Scope

REQUEST_ID = b"x-request-id"
# Where a request says what its prompt begins with, in the order of the prompt.
TEXT_FIELDS = ("system", "instructions", "messages", "prompt", "input")
MAX_TEXT = 8192  # characters by which a replica is chosen; what comes later is not looked at
_ID = re.compile(rb"[\w.-]{1,64}")
_KEYS = frozenset({b"authorization", b"x-api-key"})
_FIRST_MARK, _NUM_MARKS = 0xE000, 6400  # characters that no text uses


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwarded:
    """What a replica is to answer.

    Args:
        method: Of HTTP.
        path: Decoded.
        raw_path: As it was sent.
        query: After the question mark.
        headers: Names in small letters, and values.
        body: Whole.
        prompt: What a router compares; never empty.
        client: Who asks: address and port.
        server: Who was asked.
        scheme: http or https.
        request_id: What the response is called; None where the replica is to choose.
    """

    method: str
    path: str
    raw_path: bytes
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    prompt: str
    client: tuple[str, int] | None = None
    server: tuple[str, int | None] | None = None
    scheme: str = "http"
    request_id: str | None = None

    @classmethod
    def of(cls, scope: Scope, body: bytes) -> Forwarded:
        """The request of an ASGI scope; a body must be sound JSON or empty."""
        headers = tuple((bytes(name).lower(), bytes(value)) for name, value in scope["headers"])
        client, server = scope.get("client"), scope.get("server")
        return cls(
            method=scope["method"],
            path=scope["path"],
            raw_path=scope.get("raw_path") or scope["path"].encode("utf-8", "replace"),
            query=scope.get("query_string", b""),
            headers=headers,
            body=body,
            prompt=routing_text(scope["path"], headers, body),
            client=(client[0], client[1]) if client else None,
            server=(server[0], server[1]) if server else None,
            scheme=scope.get("scheme", "http"),
            request_id=request_id(headers),
        )

    def scope(self) -> Scope:
        """The ASGI scope of the same request."""
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": self.scheme,
            "path": self.path,
            "raw_path": self.raw_path,
            "query_string": self.query,
            "root_path": "",
            "headers": list(self.headers),
            "client": self.client,
            "server": self.server,
            "state": {},
        }
        return scope | ({"qeff.id": self.request_id} if self.request_id else {})


def request_id(headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    """The id that a request came with, where it is one that may stand in a log."""
    given = next((value for name, value in headers if name == REQUEST_ID), b"")
    return given.decode() if _ID.fullmatch(given) else None


def routing_text(path: str, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> str:
    """How the prompt of a request begins, or its path where it has none.

    The first character stands for the key and the model: what differs in them shares no cache, so
    it need not meet at one replica.
    """
    asked = json.loads(body) if body else {}
    keys = b"\0".join(value for name, value in headers if name in _KEYS)
    named = asked.get("model")
    model = named.encode() if isinstance(named, str) else b""
    mark = chr(_FIRST_MARK + crc32(model, crc32(keys)) % _NUM_MARKS)
    return mark + (_beginning(asked) or path)


def _beginning(asked: Mapping[str, Any]) -> str:
    parts: list[str] = []
    length = 0
    for name in TEXT_FIELDS:
        for text in _texts(asked.get(name)):
            parts.append(text[: MAX_TEXT - length])
            length += len(parts[-1]) + 1
            if length >= MAX_TEXT:
                return "\n".join(parts)
    return "\n".join(parts)


def _texts(value: Any) -> Iterator[str]:
    """All texts in a field of a request, whichever of the protocols' shapes it has."""
    if isinstance(value, str):
        if value:
            yield value
    elif isinstance(value, Mapping):
        yield from _texts(value.get("text") or value.get("content"))
    elif isinstance(value, list):
        if value and isinstance(value[0], int):  # tokens
            yield " ".join(str(token) for token in value[:MAX_TEXT])
            return
        for one in value:
            yield from _texts(one)
