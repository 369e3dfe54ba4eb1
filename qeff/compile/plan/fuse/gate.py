"""activation(gate) times up: gated, the middle of an MLP."""

from __future__ import annotations

from qeff.compile.plan.draft import Draft
from qeff.compile.plan.fuse.base import Outcome, maker, replaced
from qeff.ops.functions import ACTIVATIONS


def fuse(draft: Draft) -> Outcome:
    """Join an activation with the product that alone uses it."""
    outcome = Outcome("gate")
    makers, uses = draft.makers(), draft.uses()
    for place, op in enumerate(draft.ops):
        if op.kind != "binary" or op.attrs["function"] != "mul":
            continue
        for first, second in (op.inputs, op.inputs[::-1]):
            inner = maker(draft, makers, first, "unary")
            if inner is None or inner.attrs["function"] not in ACTIVATIONS:
                continue
            if len(uses[first]) > 1:
                outcome.decline(op, "the activation is used elsewhere too")
            elif draft.values[first].shape != draft.values[second].shape:
                outcome.decline(op, "gate and up differ in shape")
            elif draft.values[second].kind == "weight":
                outcome.decline(op, "the other factor is a weight")
            else:
                attrs = {"activation": inner.attrs["function"]}
                draft.ops[place] = replaced(op, "gated", (inner.inputs[0], second), attrs)
                outcome.applied += 1
                break
    return outcome
