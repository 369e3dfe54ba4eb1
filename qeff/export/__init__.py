"""Prepared -> Graph: one ONNX model for prefill and decode, weights by reference, certified.

Takes a prepared decoder; gives a graph with its certificate. The only room that traces. Knows
nothing about targets or precision.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qeff.export.artifact import Graph
    from qeff.export.exporter import export
    from qeff.export.standalone import materialize

__all__ = ["Graph", "export", "materialize"]

_HOMES = {
    "Graph": "qeff.export.artifact",
    "export": "qeff.export.exporter",
    "materialize": "qeff.export.standalone",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(name)
    return getattr(importlib.import_module(_HOMES[name]), name)
