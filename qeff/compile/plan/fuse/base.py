"""What a rewrite gives back, and the small edits that rewrites share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qeff.compile.plan.draft import Draft
from qeff.container.program import Op


@dataclass(slots=True)
class Outcome:
    """How often a rewrite applied, and for each place where it did not, the reason."""

    name: str
    applied: int = 0
    declined: list[str] = field(default_factory=list)

    def decline(self, op: Op, reason: str) -> None:
        """Say why an op was left as it is."""
        self.declined.append(f"{op.name}: {reason}")


def maker(draft: Draft, makers: Mapping[int, int], value: int, kind: str) -> Op | None:
    """The op that makes a value, when it is of this kind."""
    place = makers.get(value)
    op = draft.ops[place] if place is not None else None
    return op if op is not None and op.kind == kind else None


def replaced(op: Op, kind: str, inputs: tuple[int, ...], attrs: Mapping[str, Any]) -> Op:
    """The op under its name and with its outputs, doing something else."""
    return Op(kind, op.name, inputs, op.outputs, attrs)
