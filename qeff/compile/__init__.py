"""From a graph and options to a container folder.

Takes a Graph, gives the path of a container. Knows no torch, no text and no device; what is
particular to a target is in ``backends/<target>/lower.py``, found by name.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["available_targets", "compile_graph", "container_folder", "graph_folder"]

_HOMES = {
    "available_targets": "targets",
    "compile_graph": "compiler",
    "container_folder": "artifacts",
    "graph_folder": "artifacts",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
