"""From the graph to the program: the flat list of ops over tokens that our engines run.

Takes a Graph, gives a Program and its weights as tensors that are read when asked for. Knows no
target, no number format and no device.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["plan"]


def __getattr__(name: str) -> Any:
    if name != "plan":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.planner").plan
