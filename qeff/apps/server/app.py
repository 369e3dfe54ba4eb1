"""The web application: middleware, shapes of errors and routes put together around a state.

Knows how the parts are joined, and nothing of what they do.
"""

from __future__ import annotations

from importlib import import_module

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from qeff._version import __version__
from qeff.apps.server.errors import SERVER_ERROR, ApiError, from_qeff
from qeff.apps.server.failure import RESPONSES
from qeff.apps.server.guards import guards
from qeff.apps.server.invalid import invalid
from qeff.apps.server.replies import error_response
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
    "openai.responses",
    "openai.embeddings",
    "anthropic.messages",
    "page_route",
)
_SENTENCES = {
    404: "There is nothing at this path.",
    405: "This path does not take that method.",
}


def create_app(state: State) -> FastAPI:
    """The application of a server; ``state`` is what its routes share."""
    app = FastAPI(
        title="qeff",
        version=__version__,
        docs_url=None,  # their pages load from other places
        redoc_url=None,
        redirect_slashes=False,
        responses=RESPONSES,
    )
    app.state.serving = state
    for name in ROUTES:
        app.include_router(import_module(f"{PACKAGE}.{name}").router)
    app.add_exception_handler(ApiError, _on_api_error)  # type: ignore[arg-type]
    app.add_exception_handler(QeffError, _on_qeff_error)  # type: ignore[arg-type]
    app.add_exception_handler(RequestValidationError, _on_invalid)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, _on_http)  # type: ignore[arg-type]
    app.add_exception_handler(Exception, _on_mistake)
    for kind, options in reversed(guards(state.config, state.journal)):
        app.add_middleware(kind, **options)  # the last one added is the first that a request meets
    return app


async def _on_api_error(request: Request, error: ApiError) -> Response:
    return error_response(error, request.scope)


async def _on_qeff_error(request: Request, error: QeffError) -> Response:
    return error_response(from_qeff(error), request.scope)


async def _on_invalid(request: Request, error: RequestValidationError) -> Response:
    return error_response(invalid(error.errors(), error.body), request.scope)


async def _on_http(request: Request, error: HTTPException) -> Response:
    message = _SENTENCES.get(error.status_code, str(error.detail))
    told = ApiError(error.status_code, message, headers=error.headers)
    return error_response(told, request.scope)


async def _on_mistake(request: Request, error: Exception) -> Response:
    request_id = request.scope.get("qeff.id", "")
    log.error("request %s failed", request_id, exc_info=error)
    told = ApiError(500, f"The server made a mistake; its log knows {request_id}.", SERVER_ERROR)
    return error_response(told, request.scope)
