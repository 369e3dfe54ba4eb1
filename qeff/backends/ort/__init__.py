"""ONNX Runtime: the graph itself, on any processor; any architecture, the slow sure way."""

from __future__ import annotations

__all__: list[str] = []
