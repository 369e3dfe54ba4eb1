"""A slice of joined values that lies within one of them: that value, or a slice of it."""

from __future__ import annotations

from qeff.compile.plan.draft import Draft
from qeff.compile.plan.fuse.base import Outcome, maker, replaced


def fuse(draft: Draft) -> Outcome:
    """Let slices read the part that they come from."""
    outcome = Outcome("slices")
    makers = draft.makers()
    for place in range(len(draft.ops)):
        op = draft.ops[place]
        joined = maker(draft, makers, op.inputs[0], "concat") if op.kind == "slice" else None
        if joined is None or joined.attrs["axis"] != op.attrs["axis"]:
            continue
        axis, begin = int(op.attrs["axis"]), 0
        for index in joined.inputs:
            part = draft.values[index]
            start, stop = int(op.attrs["start"]) - begin, int(op.attrs["stop"]) - begin
            begin += part.shape[axis]
            if start < 0 or stop > part.shape[axis] or part.kind == "weight":
                continue
            if (start, stop, op.attrs["step"]) == (0, part.shape[axis], 1):
                draft.replace_uses(op.outputs[0], index)
            else:
                attrs = {**op.attrs, "start": start, "stop": stop}
                draft.ops[place] = replaced(op, "slice", (index,), attrs)
            outcome.applied += 1
            break
        else:
            outcome.decline(op, "the slice spans several of the joined values, or a weight")
    return outcome
