"""Activations that a graph spells in two ops: x · sigmoid(x) is silu, relu(x)² is relu2."""

from __future__ import annotations

from qeff.compile.plan.draft import Draft
from qeff.compile.plan.fuse.base import Outcome, maker, replaced


def fuse(draft: Draft) -> Outcome:
    """Name the activation, so that gates and engines find it."""
    outcome = Outcome("activation")
    makers = draft.makers()
    for place, op in enumerate(draft.ops):
        function = op.attrs.get("function")
        if op.kind == "unary" and function == "square":
            inner = maker(draft, makers, op.inputs[0], "unary")
            if inner is not None and inner.attrs["function"] == "relu":
                draft.ops[place] = replaced(op, "unary", inner.inputs, {"function": "relu2"})
                outcome.applied += 1
        elif op.kind == "binary" and function == "mul":
            for first, second in (op.inputs, op.inputs[::-1]):
                inner = maker(draft, makers, second, "unary")
                if inner is None or inner.attrs["function"] not in ("sigmoid", "relu"):
                    continue
                is_silu = inner.attrs["function"] == "sigmoid" and inner.inputs[0] == first
                is_relu2 = inner.attrs["function"] == "relu" and first == second
                if is_silu or is_relu2:
                    name = "silu" if is_silu else "relu2"
                    draft.ops[place] = replaced(op, "unary", inner.inputs, {"function": name})
                    outcome.applied += 1
                    break
                outcome.decline(op, "the factor is not the activation's own argument")
    return outcome
