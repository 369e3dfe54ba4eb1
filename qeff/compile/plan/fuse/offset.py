"""A constant added to an index before a table is looked up: the offset of embed."""

from __future__ import annotations

from qeff.compile.passes.fold import values_of
from qeff.compile.plan.draft import Draft
from qeff.compile.plan.fuse.base import Outcome, maker, replaced


def fuse(draft: Draft) -> Outcome:
    """Take a constant number out of the index and into the attribute."""
    outcome = Outcome("offset")
    makers = draft.makers()
    for place, op in enumerate(draft.ops):
        added = maker(draft, makers, op.inputs[1], "binary") if op.kind == "embed" else None
        if added is None or added.attrs["function"] != "add":
            continue
        for index, number in (added.inputs, added.inputs[::-1]):
            value = draft.values[number]
            if value.kind != "weight":
                continue
            if value.shape != ():
                outcome.decline(op, "what is added to the index is more than one number")
                continue
            offset = int(values_of(draft.tensors[value.name]).item())
            attrs = {**op.attrs, "offset": int(op.attrs["offset"]) + offset}
            draft.ops[place] = replaced(op, "embed", (op.inputs[0], index), attrs)
            outcome.applied += 1
            break
    return outcome
