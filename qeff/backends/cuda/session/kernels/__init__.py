"""Triton kernels, one family a file; each runs on the GPU and in Triton's interpreter."""

from __future__ import annotations

__all__: list[str] = []
