"""Rewrites of a graph, one per file; each takes an ``onnx_ir.Model`` that it may change.

A pass knows nothing of targets; a back-end's ``lower`` chooses the passes and their order.
"""

from __future__ import annotations

__all__: list[str] = []
