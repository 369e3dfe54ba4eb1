"""Weight matrices as panels of 16 rows, laid out as docs/panels.md says, and back.

Takes float matrices or the packed rows of a checkpoint, gives bytes. Knows number formats, not
graphs and not programs.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["Matrix", "Sums", "pack_panels", "panel_shape", "stream_panels", "unpack_panels"]

_HOMES = {
    "Matrix": "matrix",
    "Sums": "packing",
    "pack_panels": "packing",
    "panel_shape": "layout",
    "stream_panels": "packing",
    "unpack_panels": "unpacking",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
