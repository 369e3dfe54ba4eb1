"""What the routes of one server share, reached by ``serving(request)``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from qeff.apps.server.admission import Admission
from qeff.apps.server.config import ServerConfig
from qeff.apps.server.journal import Journal
from qeff.apps.server.measures import Gauges, add, gather
from qeff.apps.server.models import Models

if TYPE_CHECKING:
    from starlette.requests import Request

Siblings = Callable[[], Awaitable[list[dict[str, Any]]]]


@dataclass(slots=True)
class State:
    """One server.

    Args:
        config: How it was started.
        models: What it serves.
        admission: The bounded queue.
        journal: Where requests are logged.
        is_ready: Whether the default model is open.
        gauges: The last known state of the engines.
        siblings: Gives the numbers of the other replicas; None when there are none.
    """

    config: ServerConfig
    models: Models
    admission: Admission
    journal: Journal = field(default_factory=Journal)
    is_ready: bool = False
    gauges: Gauges = field(default_factory=Gauges)
    siblings: Siblings | None = None

    async def gather(self) -> dict[str, Any]:
        """The numbers of all processes of this server."""
        own = await gather(self.models, self.admission, self.gauges)
        others = await self.siblings() if self.siblings is not None else []
        return add([own, *others]) if others else own


def serving(request: Request) -> State:
    """The state of the server that a request came to."""
    state = request.app.state.serving
    assert isinstance(state, State), "the app was made without a state"
    return state


def cache_salt(request: Request, wanted: str | None = None) -> str:
    """The salt of a request's cached prefixes: different keys never share any."""
    key = request.scope.get("qeff.key") or ""
    return sha256(f"{key}\0{wanted or ''}".encode()).hexdigest() if key or wanted else ""
