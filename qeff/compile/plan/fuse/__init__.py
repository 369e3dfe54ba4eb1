"""Rewrites of a draft program, one per file: each says how often it applied and where it declined.

A rewrite is ``fuse(draft) -> Outcome``; the planner holds their order. None of them changes a
result by more than rounding.
"""

from __future__ import annotations

__all__: list[str] = []
