"""What one model family needs besides the general hooks.

A file is called ``<model_type>.py`` and has ``hooks(model, trace)``, a context manager; one whose
model transformers does not have also has ``register()``, which makes it known there. Most families
need no file; one holds only the difference.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType


def find_family(model_type: str) -> ModuleType | None:
    """The file of a model type, or None for a family that needs none."""
    name = f"{__name__}.{model_type}"
    if not model_type.isidentifier() or importlib.util.find_spec(name) is None:
        return None
    return importlib.import_module(name)


def register_family(model_type: str) -> None:
    """Make a model known to transformers, if it is one that transformers does not have."""
    family = find_family(model_type)
    if family is not None and hasattr(family, "register"):
        family.register()
