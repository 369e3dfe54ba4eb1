"""Programs over the doors: the command line and the Python class. Nothing imports this room.

Takes words or parameters, gives text and exit codes. Knows no tensors, no graph ops and no back-
end's inside.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "QEFFAutoModelForCausalLM": "qeff.apps.api",
    "build": "qeff.apps.pipeline",
    "main": "qeff.apps.cli.main",
}

__all__ = ["QEFFAutoModelForCausalLM", "build", "main"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'qeff.apps' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
