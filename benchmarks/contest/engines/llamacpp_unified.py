"""llama.cpp with one cache for all sequences, as its server has it by default."""

from __future__ import annotations

from contest.engines import llamacpp
from contest.engines.llamacpp import versions

__all__ = ["Engine", "versions"]


class Engine(llamacpp.Engine):
    """A model and a context whose sequences share one cache."""

    is_unified = True
