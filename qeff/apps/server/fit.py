"""What an output has to fit, and which field of a request says so."""

from __future__ import annotations

from dataclasses import dataclass

from qeff.generate import Constraint


@dataclass(frozen=True, slots=True)
class Fit:
    """A constraint and its field; none where everything fits."""

    constraint: Constraint | None = None
    field: str | None = None
