"""Drop ``batch_index``: row b of a step uses cache slot b.

For a target whose caller lays the rows of a step over the cache slots themselves. Writes by slot
become writes by row, and the gathers that picked a row's slot disappear.
"""

from __future__ import annotations

import onnx_ir as ir

from qeff.compile.passes.cache_write import DOMAIN, cache_write
from qeff.compile.passes.takeover import take_over
from qeff.core.spec import AXIS_BATCH, AXIS_SLOTS, BATCH_INDEX


def rows_are_slots(model: ir.Model) -> int:
    """Rewrite the main graph; returns how many nodes changed."""
    graph = model.graph
    index = next((value for value in graph.inputs if value.name == BATCH_INDEX), None)
    if index is None:
        return 0
    from_index = _derived(index)
    num_changed = 0
    for node in list(graph):
        if node.domain == DOMAIN and node.op_type == "CacheWriteAt":
            _write_by_row(graph, node)
            num_changed += 1
        elif node.op_type == "Gather" and len(node.inputs) == 2 and node.inputs[1] in from_index:
            source = node.inputs[0]
            assert source is not None
            node.outputs[0].replace_all_uses_with(source)
            graph.remove(node, safe=True)
            num_changed += 1
    for node in reversed(list(graph)):
        if node.outputs[0] in from_index and not node.outputs[0].uses():
            graph.remove(node, safe=True)
    left = [use.node.name for use in index.uses()]
    assert not left, f"{BATCH_INDEX} is still used by {left}"
    graph.inputs.remove(index)
    function = cache_write()
    model.functions[function.identifier()] = function
    _rename_axis(graph)
    return num_changed


def _derived(index: ir.Value) -> set[ir.Value]:
    """``batch_index`` and its reshaped forms."""
    found, front = {index}, [index]
    while front:
        for use in front.pop().uses():
            if (
                use.node.op_type in ("Squeeze", "Reshape", "Flatten", "Cast", "Identity", "Gather")
                and use.idx == 0
            ):
                found.add(use.node.outputs[0])
                front.append(use.node.outputs[0])
    return found


def _write_by_row(graph: ir.Graph, node: ir.Node) -> None:
    made = ir.Node(DOMAIN, "CacheWrite", node.inputs[:3], num_outputs=1, name=node.name)
    graph.insert_before(node, made)
    take_over(node.outputs[0], made.outputs[0])
    graph.remove(node, safe=True)


def _rename_axis(graph: ir.Graph) -> None:
    """The slot axis is the batch axis."""
    values = [*graph.inputs, *(out for node in graph for out in node.outputs)]
    for value in values:
        if value.shape is not None and AXIS_SLOTS in [str(size) for size in value.shape]:
            value.shape = ir.Shape(
                [AXIS_BATCH if str(size) == AXIS_SLOTS else size for size in value.shape]
            )
