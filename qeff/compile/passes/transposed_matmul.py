"""Products with a transposed constant keep the constant as it is: FusedMatMul with ``transB``.

The weight's bytes are then those of the checkpoint, and an embedding table that is also the head
is stored once.
"""

from __future__ import annotations

import onnx_ir as ir

from qeff.compile.passes.takeover import take_over

DOMAIN = "com.microsoft"


def transposed_matmul(model: ir.Model) -> int:
    """Rewrite MatMul(x, Transpose(w)) for matrices w in the main graph; returns how many."""
    graph = model.graph
    num_changed = 0
    for node in list(graph):
        turned = node.inputs[1].producer() if node.op_type == "MatMul" and node.inputs[1] else None
        if turned is None or turned.op_type != "Transpose" or not _comes_from_constants(turned):
            continue
        if list(turned.attributes.get_ints("perm", ())) != [1, 0]:
            continue
        made = ir.node(
            "FusedMatMul",
            [node.inputs[0], turned.inputs[0]],
            {"transB": 1},
            domain=DOMAIN,
            name=node.name,
        )
        graph.insert_before(node, made)
        take_over(node.outputs[0], made.outputs[0])
        graph.remove(node, safe=True)
        num_changed += 1
    if num_changed:
        graph.opset_imports[DOMAIN] = 1
    return num_changed


def _comes_from_constants(node: ir.Node) -> bool:
    """Whether folding would make the node a constant."""
    for value in node.inputs:
        if value is None or (value.const_value is not None and not value.is_graph_input()):
            continue
        maker = value.producer()
        if maker is None or not _comes_from_constants(maker):
            return False
    return True
