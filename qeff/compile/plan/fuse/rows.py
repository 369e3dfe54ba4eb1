"""Behind the last attention only the tokens whose logits are wanted go on.

Every op but those of ``ACROSS_TOKENS`` works on single tokens, so all ops behind the last of these
may run on the requested rows alone: the values that they read from before are gathered once each.
"""

from __future__ import annotations

from dataclasses import replace

from qeff.compile.plan.draft import Draft
from qeff.compile.plan.fuse.base import Outcome
from qeff.container.program import ABSENT, Op

ACROSS_TOKENS = ("attention", "reduce_span")


def fuse(draft: Draft) -> Outcome:
    """Turn everything behind the last attention from tokens to rows."""
    outcome = Outcome("rows")
    across = [place for place, op in enumerate(draft.ops) if op.kind in ACROSS_TOKENS]
    last = max(across, default=-1)
    before, behind = draft.ops[: last + 1], draft.ops[last + 1 :]
    gathered: dict[int, int] = {}
    made = {index for op in behind for index in op.outputs}

    def as_row(index: int) -> int:
        if index == ABSENT or index in made or draft.values[index].kind != "token":
            return index
        if index not in gathered:
            value = draft.values[index]
            row = draft.add_value(replace(value, name=f"{value.name}/rows", kind="row"))
            before.append(Op("gather_rows", f"{value.name}/rows", (index,), (row,)))
            gathered[index] = row
        return gathered[index]

    # 1. The logits may themselves lie before the last attention.
    behind = [replace(op, inputs=tuple(as_row(i) for i in op.inputs)) for op in behind]
    draft.logits = as_row(draft.logits)
    # 2. What is made behind is made for rows.
    for index in made:
        draft.values[index] = replace(draft.values[index], kind="row")
    draft.ops = [*before, *behind]
    outcome.applied = len(gathered)
    return outcome
