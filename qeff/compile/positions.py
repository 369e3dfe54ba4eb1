"""How long a text a graph can read: models that look positions up have a table of so many.

Found in the graph: rows that are gathered by the position alone, a constant added to it or not.
Positions that are turned into angles have no such end. Knows nothing of targets.
"""

from __future__ import annotations

import onnx_ir as ir

from qeff.core.options import CompileOptions
from qeff.core.progress import log
from qeff.core.spec import POSITION_IDS
from qeff.export.artifact import Graph

_SAME = ("Cast", "Expand", "Identity", "Mul", "Reshape", "Squeeze", "Unsqueeze")


def warn_of_missing_positions(graph: Graph, options: CompileOptions) -> None:
    """Say before the work what would fail in the middle of a long text."""
    limit = num_positions(graph.model)
    if limit is not None and limit < options.ctx_len:
        log.warning(
            "%s has a table of %d positions, so that texts cannot fill the ctx_len of %d",
            graph.spec.name,
            limit,
            options.ctx_len,
        )


def num_positions(model: ir.Model) -> int | None:
    """The positions that the shortest table has rows for; None where there is no table."""
    found = []
    for node in model.graph:
        table = node.inputs[0] if node.op_type == "Gather" else None
        if table is None or table.shape is None or not isinstance(rows := table.shape[0], int):
            continue
        offset = _offset(node.inputs[1])
        if offset is not None:
            found.append(rows - offset)
    return min(found, default=None)


def _offset(index: ir.Value | None) -> int | None:
    """What is added to the position to make this index; None where it is no position."""
    if index is None:
        return None
    if index.name == POSITION_IDS and index.is_graph_input():
        return 0
    node = index.producer()
    if node is None:
        return None
    if node.op_type == "Add":
        for one, other in (node.inputs, node.inputs[::-1]):
            offset, tensor = _offset(one), None if other is None else other.const_value
            if offset is not None and tensor is not None and tensor.size == 1:
                return offset + int(tensor.numpy().item())
        return None
    is_below = node.op_type == "Clip" and (len(node.inputs) < 3 or node.inputs[2] is None)
    if is_below or node.op_type in _SAME:
        # A product is with a mask, of ones where tokens are.
        return next((o for value in node.inputs if (o := _offset(value)) is not None), None)
    return None
