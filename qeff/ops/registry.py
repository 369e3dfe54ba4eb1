"""The op kinds by name: every module of this room that has an ``OP`` is one, named as its file.

Knows nothing of what the kinds mean.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from qeff.ops.base import OpKind


@cache
def kinds() -> Mapping[str, OpKind]:
    """Every op kind, by its name."""
    found: dict[str, OpKind] = {}
    for entry in pkgutil.iter_modules([str(Path(__file__).parent)]):
        op = getattr(importlib.import_module(f"{__package__}.{entry.name}"), "OP", None)
        if isinstance(op, OpKind):
            found[entry.name] = op
    return dict(sorted(found.items()))
