"""The native engine: a program over packed weights, run by the C++ library of this package."""

from __future__ import annotations

__all__: list[str] = []
