"""How the server is: ``/health``, ``/ready``, ``/version``, ``/metrics`` and ``/stats``.

Health never waits for an engine; the others ask engines between two steps.
"""

from __future__ import annotations

import platform
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from qeff._version import __version__
from qeff.apps.server.dashboard import dashboard
from qeff.apps.server.metrics import CONTENT_TYPE, exposition
from qeff.apps.server.routing import Router
from qeff.apps.server.state import serving

router = Router("status")


@router.get("/health")
async def health(request: Request) -> dict[str, str]:
    """Whether the process answers at all."""
    return {"status": "ok"}


@router.get("/ready")
async def ready(request: Request) -> Response:
    """Whether requests are taken: 503 while the server starts or drains."""
    state = serving(request)
    if state.admission.is_draining:
        return JSONResponse({"status": "draining"}, 503, {"Retry-After": "5"})
    if not state.is_ready:
        return JSONResponse({"status": "starting"}, 503, {"Retry-After": "1"})
    return JSONResponse({"status": "ready"})


@router.get("/version")
async def version(request: Request) -> dict[str, str]:
    """What is running."""
    return {"version": __version__, "python": platform.python_version()}


@router.get("/metrics", media="text/plain")
async def metrics(request: Request) -> Response:
    """All numbers, for Prometheus."""
    gathered = await serving(request).gather()
    return PlainTextResponse(exposition(gathered), headers={"Content-Type": CONTENT_TYPE})


@router.get("/stats")
async def stats(request: Request) -> dict[str, Any]:
    """The numbers that the page draws."""
    return dashboard(await serving(request).gather())
