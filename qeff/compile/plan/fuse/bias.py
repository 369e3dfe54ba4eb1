"""linear then add of a vector: linear with a bias."""

from __future__ import annotations

from qeff.compile.plan.draft import Draft
from qeff.compile.plan.fuse.base import Outcome, maker, replaced


def fuse(draft: Draft) -> Outcome:
    """Give each linear the vector that is added to its result alone."""
    outcome = Outcome("bias")
    makers, uses = draft.makers(), draft.uses()
    for place, op in enumerate(draft.ops):
        if op.kind != "binary" or op.attrs["function"] != "add":
            continue
        for first, second in (op.inputs, op.inputs[::-1]):
            linear, bias = maker(draft, makers, first, "linear"), draft.values[second]
            if linear is None or bias.kind != "weight":
                continue
            if len(linear.inputs) > 2:
                outcome.decline(op, "the linear has a bias already")
            elif len(uses[first]) > 1:
                outcome.decline(op, "the linear's result is used without the bias too")
            elif bias.shape != draft.values[first].shape[-1:]:
                outcome.decline(op, f"the addend {bias.shape} is no vector of the outputs")
            else:
                inputs = (*linear.inputs, second)
                draft.ops[place] = replaced(op, "linear", inputs, linear.attrs)
                outcome.applied += 1
                break
    return outcome
