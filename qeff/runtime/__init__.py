"""Open a container, give a session.

Takes a container, gives a Session on a device. Knows no text and no schedule.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = [
    "CHOICE",
    "GREEDY",
    "NO_CHOICE",
    "Batch",
    "Capabilities",
    "Session",
    "Span",
    "StepOutput",
    "open_session",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "open" if name == "open_session" else "session"
    return getattr(import_module(f"{__name__}.{home}"), name)
