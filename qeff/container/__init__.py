"""The waist: the folder that compile writes and everything after it reads.

Takes bytes and weights, gives them back checked. Knows no graphs, no devices and no text. The
format is told in ``docs/container.md``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["Container", "ContainerWriter", "Manifest", "Program", "WeightGroup", "WeightSpec"]

_HOMES = {
    "Container": "reader",
    "ContainerWriter": "writer",
    "Manifest": "manifest",
    "Program": "program",
    "WeightGroup": "weights",
    "WeightSpec": "weights",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
