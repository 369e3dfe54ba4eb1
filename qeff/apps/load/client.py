"""A small HTTP/1.1 client over asyncio's streams: one request to a connection, bodies as they come.

Reads answers with a length, in chunks, or up to the end of the connection, and splits event streams
into events. Knows nothing of models; follows no redirects and keeps no cookies.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from qeff.core.errors import OptionValueError, ResourceError

READ_BYTES = 1 << 16
MAX_LINE_BYTES = 1 << 24  # one event may hold a whole answer
LARGE_BYTES = 1 << 20  # of a body, from which on the server is asked before it is sent
PATIENCE_S = 2.0  # how long the answer to that is waited for: not every server gives one
CONTINUE = 100


class ConnectionLost(ResourceError):
    """No connection, or one that ended in the middle of an answer."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens, and what its paths begin with."""

    host: str
    port: int
    is_tls: bool = False
    prefix: str = ""

    @classmethod
    def parse(cls, url: str) -> Address:
        """The address in a URL; ``/v1`` at its end is left out, since paths begin with it."""
        hint = "give it as http://127.0.0.1:8000"
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise OptionValueError(f"{url!r} is no address: {error}", hint) from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise OptionValueError(f"{url!r} is no address of a server", hint)
        is_tls = parts.scheme == "https"
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, port or (443 if is_tls else 80), is_tls, prefix)

    @property
    def place(self) -> str:
        """Host and port, as URLs and headers have them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"http{'s' if self.is_tls else ''}://{self.place}{self.prefix}"


@dataclass(slots=True)
class Reply:
    """The head of an answer, and its body still to be read."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    reader: asyncio.StreamReader = field(repr=False)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body, as it comes."""
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            async for piece in self._chunks():
                yield piece
        elif (length := self.headers.get("content-length")) is not None:
            left = _number(length.encode(), 10)
            while left:
                piece = await self.reader.read(min(left, READ_BYTES))
                if not piece:
                    raise ConnectionLost("the connection ended in the middle of an answer")
                left -= len(piece)
                yield piece
        else:
            while piece := await self.reader.read(READ_BYTES):
                yield piece

    async def _chunks(self) -> AsyncIterator[bytes]:
        while True:
            size = _number((await _line(self.reader)).split(b";")[0], 16)
            if not size:
                while await _line(self.reader):  # trailers
                    pass
                return
            yield await self.reader.readexactly(size)
            await self.reader.readexactly(2)

    async def read(self) -> bytes:
        """The whole body."""
        return b"".join([piece async for piece in self.pieces()])

    async def events(self) -> AsyncIterator[str]:
        """The data of each event of an event stream; comments are left out."""
        rest, data = b"", []
        async for piece in self.pieces():
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                text = line.rstrip(b"\r").decode("utf-8", "replace")
                if text.startswith("data:"):
                    data.append(text[5:].removeprefix(" "))
                elif not text and data:
                    yield "\n".join(data)
                    data = []


@asynccontextmanager
async def request(
    address: Address,
    method: str,
    path: str,
    *,
    body: object = None,
    headers: Mapping[str, str] | None = None,
) -> AsyncIterator[Reply]:
    """Send a request, its body as JSON; the connection is closed when the block is left."""
    payload = b"" if body is None else json.dumps(body).encode()
    lines = {
        "Host": address.place,
        "Content-Type": "application/json",
        "Content-Length": str(len(payload)),
        "Connection": "close",
        **({"Expect": "100-continue"} if len(payload) >= LARGE_BYTES else {}),
        **(headers or {}),
    }
    head = f"{method} {address.prefix}{path} HTTP/1.1\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in lines.items()) + "\r\n"
    tls = ssl.create_default_context() if address.is_tls else None
    try:
        reader, writer = await asyncio.open_connection(
            address.host, address.port, ssl=tls, limit=MAX_LINE_BYTES
        )
    except OSError as error:
        code = error.errno or 0  # names that are not known have a code below 0
        why = os.strerror(code) if code > 0 else str(error)
        raise ConnectionLost(f"{address} does not answer: {why}", "is the server there?") from error
    try:
        yield await _exchange(reader, writer, head.encode("latin-1"), payload)
    except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError) as error:
        raise ConnectionLost("the connection ended in the middle of an answer") from error
    finally:
        writer.close()
        with suppress(ConnectionError, ssl.SSLError):  # it is over, one way or the other
            await writer.wait_closed()


async def fetch_json(
    address: Address,
    method: str,
    path: str,
    *,
    body: object = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, Any]:
    """The status and the JSON body of an answer; a body that is no JSON comes as None."""
    async with request(address, method, path, body=body, headers=headers) as reply:
        text = await reply.read()
    try:
        return reply.status, json.loads(text)
    except ValueError:
        return reply.status, None


def bearer(api_key: str | None) -> dict[str, str]:
    """The header that carries an API key."""
    return {} if api_key is None else {"Authorization": f"Bearer {api_key}"}


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes, payload: bytes
) -> Reply:
    """Send a request and read the head of its answer."""
    reply = None
    if len(payload) >= LARGE_BYTES:
        # A server that refuses a body without reading it ends the connection, and its reason is
        # lost to whoever is still sending.
        writer.write(head)
        head = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                reply = await _reply(reader)
    if reply is None or reply.status == CONTINUE:
        writer.write(head + payload)
        await writer.drain()
        reply = await _reply(reader)
    while reply.status == CONTINUE:  # it came late
        reply = await _reply(reader)
    return reply


async def _reply(reader: asyncio.StreamReader) -> Reply:
    """Read the head of an answer."""
    words = (await _line(reader)).split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1."):
        raise _not_http()
    headers = {}
    while line := await _line(reader):
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    return Reply(_number(words[1], 10), headers, reader)


async def _line(reader: asyncio.StreamReader) -> bytes:
    """One line without its end."""
    try:
        return (await reader.readuntil(b"\n")).rstrip(b"\r\n")
    except asyncio.LimitOverrunError as error:
        raise _not_http() from error


def _number(text: bytes, base: int) -> int:
    try:
        return int(text, base)
    except ValueError as error:
        raise _not_http() from error


def _not_http() -> ConnectionLost:
    return ConnectionLost("what answers there does not speak HTTP/1.1")
