"""Sources: finds and opens a checkpoint. Takes a name, gives a ``Source``.

A source has the config, lazily mapped tensors under their Hugging Face names, and the text files.
This room knows nothing of graphs, targets or generation.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qeff.sources.base import Source
    from qeff.sources.location import Location, locate, locate_dummy
    from qeff.sources.opening import open_source

__all__ = ["Location", "Source", "locate", "locate_dummy", "open_source"]

_HOMES = {
    "Location": "qeff.sources.location",
    "Source": "qeff.sources.base",
    "locate": "qeff.sources.location",
    "locate_dummy": "qeff.sources.location",
    "open_source": "qeff.sources.opening",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
