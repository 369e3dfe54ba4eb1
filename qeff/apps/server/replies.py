"""Answers an ASGI request with an error, in the shape of the protocol that its path belongs to."""

from __future__ import annotations

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from qeff.apps.server.errors import ApiError, body_of


def error_response(error: ApiError, scope: Scope) -> JSONResponse:
    """The response for an error."""
    body = body_of(error, scope["path"], scope.get("qeff.id"))
    return JSONResponse(body, status_code=error.status, headers=error.headers)


async def reply(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Send the response for an error, from where there is no route yet."""
    await error_response(error, scope)(scope, receive, send)
