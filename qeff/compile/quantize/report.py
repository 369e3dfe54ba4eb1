"""How much a quantisation changed the weights, by weight class, for the certificate.

Filled while the weights are packed; relative root-mean-square error over a class and its worst
tensor.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any


class ErrorReport:
    """Collects squared errors tensor by tensor."""

    def __init__(self) -> None:
        self._rows: dict[str, list[tuple[str, float, float]]] = defaultdict(list)

    def add(self, weight_class: str, name: str, error: float, energy: float) -> None:
        """Note one tensor's sums of squared error and squared value."""
        self._rows[weight_class].append((name, error, energy))

    def summary(self) -> dict[str, Any]:
        """One entry per class, rounded so that it does not hang on the last bits of a sum."""
        return {kind: _summarise(rows) for kind, rows in sorted(self._rows.items())}


def _summarise(rows: list[tuple[str, float, float]]) -> dict[str, Any]:
    error, energy = math.fsum(row[1] for row in rows), math.fsum(row[2] for row in rows)
    worst = max(rows, key=lambda row: _relative(row[1], row[2]))
    return {
        "tensors": len(rows),
        "relative_rms_error": _relative(error, energy),
        "worst_tensor": worst[0],
        "worst_relative_rms_error": _relative(worst[1], worst[2]),
    }


def _relative(error: float, energy: float) -> float:
    return float(f"{math.sqrt(error / energy):.4g}") if energy else 0.0
