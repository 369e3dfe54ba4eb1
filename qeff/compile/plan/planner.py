"""Plan: the whole way from a graph to a program in one function.

Lower what the logits need, fuse, keep only the requested rows behind the last attention, and check
the result against the ops' own rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from qeff.compile.plan.draft import Draft
from qeff.compile.plan.fuse import activation, bias, gate, offset, positions, rows, slices
from qeff.compile.plan.fuse.base import Outcome
from qeff.compile.plan.lowering import Lowering
from qeff.compile.plan.rules import DEMANDS, RULES
from qeff.container.program import Program
from qeff.core.progress import log
from qeff.export.artifact import Graph
from qeff.ops import validate

# Activations are named before gates look for them; rows come last, since they split the program.
REWRITES: tuple[Callable[[Draft], Outcome], ...] = (
    positions.fuse,
    slices.fuse,
    bias.fuse,
    activation.fuse,
    gate.fuse,
    offset.fuse,
    rows.fuse,
)


def plan(graph: Graph) -> tuple[Program, Mapping[str, ir.TensorProtocol]]:
    """The program of a graph, and its weights by name, each read when asked for."""
    draft = Lowering(graph.model.graph).run(RULES, DEMANDS)
    for rewrite in REWRITES:
        outcome = rewrite(draft)
        log.debug("plan: %s applied %d times", outcome.name, outcome.applied)
        for reason in outcome.declined:
            log.debug("plan: %s declined at %s", outcome.name, reason)
    program = draft.finish()
    validate(program)
    return program, draft.tensors
