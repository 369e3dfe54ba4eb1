"""Which targets this release can compile for, told without loading any of them.

A target is there when ``backends/<target>/lower.py`` is. Knows nothing of graphs.
"""

from __future__ import annotations

from importlib.util import find_spec

from qeff.core.options import TARGETS


def available_targets() -> list[str]:
    """The targets that this release can compile for."""
    return [name for name in TARGETS if has_lowering(name)]


def has_lowering(target: str) -> bool:
    """Whether a target has a build side."""
    package = f"qeff.backends.{target}"
    return find_spec(package) is not None and find_spec(f"{package}.lower") is not None
