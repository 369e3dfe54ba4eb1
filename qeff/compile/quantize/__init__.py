"""Weights in fewer bits: the arithmetic of each format, and the rewrite of a graph that uses it.

Takes float arrays or graphs, gives packed arrays or graphs. Knows no targets.
"""

from __future__ import annotations

__all__: list[str] = []
