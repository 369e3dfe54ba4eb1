"""``/v1/models``: which models there are."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from qeff.apps.server.routing import Router
from qeff.apps.server.state import State, serving

router = Router("models")
OWNER = "qeff"


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    """All models, the default first."""
    state = serving(request)
    return {"object": "list", "data": [_card(state, name) for name in state.models.names()]}


@router.get("/v1/models/{name:path}")
async def show_model(request: Request, name: str) -> dict[str, Any]:
    """One model."""
    return _card(serving(request), name)


def _card(state: State, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": state.models.created(name),
        "owned_by": OWNER,
        "max_model_len": state.models.info(name).ctx_len,
    }
