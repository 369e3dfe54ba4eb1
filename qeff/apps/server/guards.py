"""What a request meets before any route: the log, names, keys, and the check of its body.

The one list of them, in their order, for the application and for whoever lets requests in ahead of
it. Knows nothing of routes.
"""

from __future__ import annotations

from typing import Any

from starlette.types import ASGIApp

from qeff.apps.server.access import is_loopback, read_keys
from qeff.apps.server.body import BodyCheck
from qeff.apps.server.config import ServerConfig
from qeff.apps.server.hosts import HostCheck
from qeff.apps.server.journal import Journal, RequestLog
from qeff.apps.server.keys import KeyCheck, Keys


def guards(config: ServerConfig, journal: Journal) -> list[tuple[Any, dict[str, Any]]]:
    """ASGI middleware and its options; the first is the first that a request meets."""
    keys = Keys(read_keys(config.api_key, config.api_key_file))
    found: list[tuple[Any, dict[str, Any]]] = [(RequestLog, {"journal": journal})]
    if not keys and is_loopback(config.host):
        found.append((HostCheck, {"allowed": frozenset(map(str.lower, config.allowed_host))}))
    found.append((KeyCheck, {"keys": keys}))
    found.append((BodyCheck, {"max_bytes": config.max_body_bytes}))
    return found


def guarded(app: ASGIApp, config: ServerConfig, journal: Journal) -> ASGIApp:
    """The application behind all of them."""
    for kind, options in reversed(guards(config, journal)):
        app = kind(app, **options)
    return app
