"""The program on an NVIDIA GPU: torch for memory and dense products, Triton for all else."""

from __future__ import annotations

__all__: list[str] = []
