"""The web application: middleware, shapes of errors and routes put together around a state.

Knows how the parts are joined, and nothing of what they do.
"""

from __future__ import annotations

import asyncio
from functools import cache
from importlib import import_module
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from qeff.apps.server.errors import SERVER_ERROR, ApiError, from_qeff
from qeff.apps.server.guards import guards
from qeff.apps.server.replies import error_response
from qeff.apps.server.routing import Operation
from qeff.apps.server.state import State
from qeff.core.errors import QeffError
from qeff.core.progress import log

PACKAGE = "qeff.apps.server"
# Each exports ``router``.
ROUTES = (
    "status",
    "tokens",
    "openai.catalog",
    "openai.completions",
    "openai.chat",
    "page_route",
)
# Loaded when one of them is first asked: few servers are asked for all.
SELDOM = ("openai.responses", "openai.embeddings", "anthropic.messages")
_SENTENCES = {
    404: "There is nothing at this path.",
    405: "This path does not take that method.",
}


def create_app(state: State) -> Starlette:
    """The application of a server; ``state`` is what its routes share."""
    met = guards(state.config, state.journal)
    first, *others = [Middleware(kind, **options) for kind, options in met]
    app = Starlette(
        routes=[Route("/openapi.json", _show_document), *_routes(ROUTES)],
        # Mistakes are answered behind the log, which then tells of them as of all else.
        middleware=[first, Middleware(ServerErrorMiddleware, handler=_on_mistake), *others],
        exception_handlers=dict(ON_ERRORS),
    )
    app.router.redirect_slashes = False
    app.router.default = _ask_the_seldom
    app.state.serving = state
    return app


def operations(names: tuple[str, ...] = ROUTES + SELDOM) -> list[Operation]:
    """What the server can be asked; all of it, or of some parts."""
    parts = (import_module(f"{PACKAGE}.{name}").router for name in names)
    return [one for part in parts for one in part.operations]


def _routes(names: tuple[str, ...]) -> list[Route]:
    return [Route(one.path, one.respond, methods=[one.method]) for one in operations(names)]


@cache
def _seldom() -> Router:
    return Router(_routes(SELDOM), redirect_slashes=False)


async def _ask_the_seldom(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers what none of the other routes does."""
    is_loaded = _seldom.cache_info().currsize > 0
    router = _seldom() if is_loaded else await asyncio.to_thread(_seldom)
    await router(scope, receive, send)


@cache
def _document() -> Response:
    from qeff.apps.server.openapi import document

    return JSONResponse(document(operations()))


async def _show_document(request: Request) -> Response:
    return await asyncio.to_thread(_document)


async def _on_api_error(request: Request, error: ApiError) -> Response:
    return error_response(error, request.scope)


async def _on_qeff_error(request: Request, error: QeffError) -> Response:
    return error_response(from_qeff(error), request.scope)


async def _on_http(request: Request, error: HTTPException) -> Response:
    message = _SENTENCES.get(error.status_code, str(error.detail))
    told = ApiError(error.status_code, message, headers=error.headers)
    return error_response(told, request.scope)


async def _on_mistake(request: Request, error: Exception) -> Response:
    request_id = request.scope.get("qeff.id", "")
    log.error("request %s failed", request_id, exc_info=error)
    told = ApiError(500, f"The server made a mistake; its log knows {request_id}.", SERVER_ERROR)
    return error_response(told, request.scope)


ON_ERRORS: dict[Any, Any] = {  # each is called with its own kind of error
    ApiError: _on_api_error,
    QeffError: _on_qeff_error,
    HTTPException: _on_http,
}
