"""The first position of a row plus the place within it: the position itself.

Some models count positions anew from the length of what came before; the caller gives them already.
"""

from __future__ import annotations

from qeff.compile.plan.draft import Draft
from qeff.compile.plan.fuse.base import Outcome, maker


def fuse(draft: Draft) -> Outcome:
    """Read positions instead of counting them: first + (position - first)."""
    outcome = Outcome("positions")
    makers = draft.makers()
    for op in list(draft.ops):
        if op.kind != "binary" or op.attrs["function"] != "add":
            continue
        for first, second in (op.inputs, op.inputs[::-1]):
            lowest = _source(draft, makers, first)
            place = maker(draft, makers, _source(draft, makers, second), "binary")
            if place is None or place.attrs["function"] != "sub":
                continue
            span = maker(draft, makers, lowest, "reduce_span")
            if span is None or place.inputs != (draft.positions, lowest):
                outcome.decline(op, "what is added to the place is not the row's first position")
            elif draft.values[op.outputs[0]].shape != ():
                outcome.decline(op, "the position has inner axes")
            else:
                draft.replace_uses(op.outputs[0], draft.positions)
                outcome.applied += 1
                break
    return outcome


def _source(draft: Draft, makers: dict[int, int], index: int) -> int:
    """What a reshaped value was before."""
    while (op := maker(draft, makers, index, "reshape")) is not None:
        index = op.inputs[0]
    return index
