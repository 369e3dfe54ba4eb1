"""What is not needed of every token is done for the tokens whose logits are wanted alone.

Every token is needed where keys and values are written and where an op looks at its neighbours,
and in all that this is made of. The rest runs on the requested rows: the head, the last layer but
for its keys and values, and every layer whose keys and values come from a lower one. What such an
op reads of all tokens is gathered once.
"""

from __future__ import annotations

from dataclasses import replace

from qeff.compile.plan.draft import Draft
from qeff.compile.plan.fuse.base import Outcome
from qeff.container.program import ABSENT, Op


def fuse(draft: Draft) -> Outcome:
    """Turn every op that is not needed for all tokens from tokens to rows."""
    outcome = Outcome("rows")
    whole = _for_all_tokens(draft)
    ops: list[Op] = []
    gathered: dict[int, int] = {}

    def as_row(index: int) -> int:
        if index == ABSENT or draft.values[index].kind != "token":
            return index
        if index not in gathered:
            value = draft.values[index]
            row = draft.add_value(replace(value, name=f"{value.name}/rows", kind="row"))
            ops.append(Op("gather_rows", f"{value.name}/rows", (index,), (row,)))
            gathered[index] = row
        return gathered[index]

    for place, op in enumerate(draft.ops):
        if place in whole:
            ops.append(op)
            continue
        if op.kind == "attention":
            inputs = (as_row(op.inputs[0]), *op.inputs[1:])
            made = replace(op, inputs=inputs, attrs={**op.attrs, "by_row": True})
        else:
            made = replace(op, inputs=tuple(as_row(i) for i in op.inputs))
        ops.append(made)
        for index in op.outputs:
            draft.values[index] = replace(draft.values[index], kind="row")
    draft.logits = as_row(draft.logits)
    draft.ops = ops
    outcome.applied = len(gathered)
    return outcome


def _for_all_tokens(draft: Draft) -> set[int]:
    """The places of ops whose results are needed for every token."""
    needed: set[int] = set()
    found: set[int] = set()
    for place, op in reversed(list(enumerate(draft.ops))):
        if op.kind == "reduce_span" or needed & set(op.outputs):
            found.add(place)
            needed.update(op.inputs)
        elif op.kind == "attention":
            needed.update(op.inputs[1:3])
        needed.discard(ABSENT)
    return found
