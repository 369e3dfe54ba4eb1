"""Bodies of requests: their size, and whether they are sound JSON.

Reads a body whole, counting, before any route sees it. Numbers that are none, halves of characters
and structures too deep are refused here, so that no route can meet them.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qeff.apps.server.errors import ApiError, bad_request
from qeff.apps.server.large import beside
from qeff.apps.server.replies import reply

WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
PATIENCE_S = 60.0  # how long a body may take to come
_VALUE, _SIZE = "qeff.json", "qeff.size"  # in the scope of a request that was let through
MAX_DEPTH = 64  # of lists and objects in each other
MAX_PARTS = 250_000  # values and commas; a long text has fewer
MAX_NESTS = 2**15  # lists and objects
SLICE = 2**20
_HALF_CHARACTER = re.compile(rb"\\u[dD][89a-fA-F]")
_PAIR = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_NO_MARKS = bytes(set(range(256)) - set(b'"[]{}'))
_STRING = re.compile(rb'"[^"]*"')


class BodyCheck:
    """ASGI middleware: reads the body under a limit and checks its JSON."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in WITH_BODY:
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(PATIENCE_S):
                body = await self._read(scope, receive)
            if body is None:
                return  # the client went away while it was sending
            kind = Headers(scope=scope).get("content-type", "")
            scope[_VALUE] = await beside(len(body), check_json, body, kind)
            scope[_SIZE] = len(body)
        except ApiError as error:
            await reply(error, scope, receive, send)
            return
        except TimeoutError:
            late = ApiError(408, "The body of the request did not come.", code="body_timeout")
            await reply(late, scope, receive, send)
            return
        is_read = False

        async def replay() -> Message:
            nonlocal is_read
            if is_read:
                return await receive()
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, replay, send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdigit() and int(declared) > self._max_bytes:
            raise self._too_large()
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._max_bytes:
                raise self._too_large()
            if not message.get("more_body", False):
                return b"".join(parts)

    def _too_large(self) -> ApiError:
        return ApiError(
            413,
            f"The request is larger than {self._max_bytes} bytes.",
            code="request_too_large",
            headers={"Connection": "close"},  # the rest of the body is not read
        )


def value_of(scope: Scope) -> dict[str, Any]:
    """The value of the body of a request that was let through."""
    value: dict[str, Any] = scope[_VALUE]
    return value


def size_of(scope: Scope) -> int:
    """How many bytes it has."""
    size: int = scope[_SIZE]
    return size


def check_json(body: bytes, content_type: str) -> dict[str, Any]:
    """The value of a body; raises ApiError with what is wrong with it."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind != "application/json":
        said = f"not {kind!r:.60}" if kind else "and the request names none"
        raise ApiError(415, f"The content type must be application/json, {said}.")
    if not body.strip():
        raise bad_request("The request has no body; a JSON object is expected.")
    # Any backslash that is left escapes what follows it.
    plain = b"".join(part.replace(b"\\\\", b"") for part in _slices(body))
    check_structure(plain)
    if _HALF_CHARACTER.search(plain) and _HALF_CHARACTER.search(_PAIR.sub(b"", plain)):
        raise bad_request("The body holds half of a character (a lone surrogate).")
    try:
        value = json.loads(
            body.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite
        )
    except UnicodeDecodeError:
        raise bad_request("The body is not UTF-8.") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise bad_request(f"The body is not valid JSON: {error.msg} at {where}.") from None
    except RecursionError:
        raise bad_request("The body is nested too deeply.") from None
    except ValueError:  # what Python refuses to read, since it takes long
        raise bad_request("The body holds a number of thousands of digits.") from None
    if not isinstance(value, dict):
        raise bad_request("The body must be a JSON object.")
    return value


def check_structure(plain: bytes) -> None:
    """Refuse what is deeper, or has more parts, than anything meant; quick for long texts."""
    counts = [(part.count(b"[") + part.count(b"{"), part.count(b",")) for part in _slices(plain)]
    num_brackets = sum(brackets for brackets, _ in counts)
    if num_brackets > MAX_PARTS or sum(commas for _, commas in counts) > MAX_PARTS:
        raise ApiError(413, f"The body has more than {MAX_PARTS} parts.", code="too_many_parts")
    if num_brackets <= MAX_DEPTH:
        return
    marks = (part.replace(b'\\"', b"").translate(None, _NO_MARKS) for part in _slices(plain))
    brackets = _STRING.sub(b"", b"".join(marks))
    depth = 0
    for mark in brackets:
        depth += 1 if mark in b"[{" else -1
        if depth > MAX_DEPTH:
            raise bad_request("The body is nested too deeply.")
    if len(brackets) > 2 * MAX_NESTS:
        raise ApiError(
            413, f"The body has more than {MAX_NESTS} lists and objects.", code="too_many_parts"
        )


def _slices(data: bytes) -> Iterator[bytes]:
    """The parts of a body, short enough that other threads get their turn between two of them.

    None ends with a backslash: what it escapes, and the backslashes before it, stay together.
    """
    start = 0
    while start < len(data):
        end = start + SLICE
        while data[end - 1 : end] == b"\\":
            end += 1
        yield data[start:end]
        start = end


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise bad_request(f"The body holds a number that is too large: {text:.40}.")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise bad_request(f"The body holds {name}, which is no JSON number.")
