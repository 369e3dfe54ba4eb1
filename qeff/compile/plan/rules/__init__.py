"""How each node type of a graph becomes ops of the program, one file for each kind of work.

A rule takes a node and the lowering, and returns what each output has become. ``DEMANDS`` names,
for the node types that do not read all their inputs, those that they read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from qeff.compile.plan.lowering import Lowered, Lowering
from qeff.compile.plan.rules import (
    attention,
    counting,
    elementwise,
    experts,
    indexing,
    normalise,
    products,
    reducing,
    shapes,
)

Rule = Callable[[ir.Node, Lowering], Sequence[Lowered | None]]
Demand = Callable[[ir.Node], Sequence[ir.Value | None]]

RULES: dict[str, Rule] = {
    **attention.RULES,
    **counting.RULES,
    **elementwise.RULES,
    **experts.RULES,
    **indexing.RULES,
    **normalise.RULES,
    **products.RULES,
    **reducing.RULES,
    **shapes.RULES,
}
DEMANDS: dict[str, Demand] = {
    **attention.DEMANDS,
    **counting.DEMANDS,
    **indexing.DEMANDS,
    **shapes.DEMANDS,
}

__all__ = ["DEMANDS", "RULES"]
