"""How each torch op is written in ONNX: one table of rules, filled by one file per family of ops.

A rule takes the emitter and a program node and gives the graph value (or a tuple of them).
"""

from __future__ import annotations

from qeff.export.emission import elementwise, index, layers, ours, pairs, reduce, shape
from qeff.export.emission.table import RULES

__all__ = ["RULES", "elementwise", "index", "layers", "ours", "pairs", "reduce", "shape"]
