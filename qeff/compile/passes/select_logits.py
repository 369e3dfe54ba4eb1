"""Only the rows that somebody wants reach the head.

Adds the input ``logits_index`` [rows], which counts the step's tokens row by row, and makes
``logits`` [rows, vocab]. The head of a large vocabulary is then computed for one token of a prompt
and not for all. The cut is made as early as every op up to the logits works on single tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from qeff.compile.passes.constants import add_constant
from qeff.core.spec import LOGITS, LOGITS_INDEX

AXIS_ROWS = "logits_rows"

_UNARY = {"Tanh", "Cast", "Identity", "Sigmoid", "Swish", "Gelu", "Relu", "Neg", "Softplus"}
_PRODUCTS = {"MatMul", "FusedMatMul"}
_BINARY = {"Add", "Sub", "Mul", "Div"}
_NORMS = {"RMSNormalization", "LayerNormalization"}


def select_logits(model: ir.Model) -> str:
    """Rewrite the main graph; returns the name of the value that is cut."""
    graph = model.graph
    logits = next(value for value in graph.outputs if value.name == LOGITS)
    heads = _region_of_heads(graph, logits)
    if heads:
        return _select_for_heads(graph, logits, *heads)
    path = _per_token_path(logits)
    start = path[-1].inputs[0] if path else logits
    assert start is not None and start.shape is not None and len(start.shape) == 3, (
        "[batch, seq, width]"
    )
    flat, rows = _gather(graph, start)
    name = start.name
    if path:
        graph.insert_before(path[-1], [flat, rows])
        path[-1].replace_input_with(0, rows.outputs[0])
        for node in path:
            out = node.outputs[0]
            assert out.shape is not None
            out.shape = ir.Shape([AXIS_ROWS, *list(out.shape)[2:]])
            if node.op_type in _NORMS:
                node.attributes["axis"] = ir.AttrInt64("axis", -1)
    else:
        _take_over_output(graph, logits, rows.outputs[0])
        graph.extend([flat, rows])
    return str(name)


def _gather(graph: ir.Graph, start: ir.Value) -> tuple[ir.Node, ir.Node]:
    """Nodes that make [rows, width] of a value [batch, seq, width]; the caller puts them in."""
    assert start.shape is not None
    width = start.shape[2]
    assert isinstance(width, int), "the width of a token is fixed"
    index = ir.Value(
        name=LOGITS_INDEX, shape=ir.Shape([AXIS_ROWS]), type=ir.TensorType(ir.DataType.INT64)
    )
    graph.inputs.append(index)
    shape = ir.tensor(np.array([-1, width], np.int64))  # [batch·seq, width]
    flat_shape = add_constant(graph, f"{LOGITS_INDEX}/shape", shape)
    flat = ir.node("Reshape", [start, flat_shape], name=f"{LOGITS_INDEX}/flatten")
    rows = ir.node("Gather", [flat.outputs[0], index], {"axis": 0}, name=f"{LOGITS_INDEX}/select")
    for node, size in ((flat, None), (rows, AXIS_ROWS)):
        _describe(node, start, [size, width])
    return flat, rows


def _describe(node: ir.Node, like: ir.Value, shape: list[Any]) -> None:
    node.outputs[0].name = node.name
    node.outputs[0].type = like.type
    node.outputs[0].shape = ir.Shape(shape)


def _region_of_heads(graph: ir.Graph, logits: ir.Value) -> tuple[ir.Value, list[ir.Node]] | None:
    """What several heads read and the nodes from there to the logits; None: there is one head."""
    path = _per_token_path(logits)
    joined = (path[-1].inputs[0] if path else logits).producer()  # type: ignore[union-attr]
    several = joined.inputs[0] if joined is not None and joined.op_type == "Reshape" else None
    if several is None or several.shape is None or len(several.shape) != 4:
        return None
    places: dict[ir.Node | None, int] = {node: place for place, node in enumerate(graph)}
    region: list[ir.Node] = []
    waiting = [logits]
    has_spread = False
    while not (has_spread and len(waiting) == 1):
        value = max(waiting, key=lambda v: places.get(v.producer(), -1))
        node = value.producer()
        if node is None or not (_is_per_token(node) or _joins_tokens(node)):
            return None
        waiting.remove(value)
        region.append(node)
        sources = [v for v in node.inputs if v is not None and v.shape is not None]
        waiting += {v: None for v in sources if len(v.shape or ()) >= 3 and v not in waiting}
        has_spread |= len(waiting) > 1
    cut = waiting[0]
    is_plain = cut.shape is not None and len(cut.shape) == 3
    return (cut, region) if is_plain else None


def _joins_tokens(node: ir.Node) -> bool:
    """Whether heads are put together here, each token by itself."""
    if node.domain != "" or len(node.outputs) != 1:
        return False
    shapes = [value.shape for value in (*node.inputs[:1], *node.outputs) if value is not None]
    keeps = len({tuple(shape[:2]) for shape in shapes if shape is not None}) == 1
    return node.op_type in (*_BINARY, "Unsqueeze", "Concat", "Reshape") and keeps


def _select_for_heads(
    graph: ir.Graph, logits: ir.Value, cut: ir.Value, region: list[ir.Node]
) -> str:
    """Every wanted row becomes a sequence of one token, and the heads stay as they are."""
    assert cut.shape is not None and logits.shape is not None
    first = region[-1]
    flat, rows = _gather(graph, cut)
    axis = add_constant(graph, f"{LOGITS_INDEX}/axis", ir.tensor(np.array([1], np.int64)))
    single = ir.node("Unsqueeze", [rows.outputs[0], axis], name=f"{LOGITS_INDEX}/single")
    _describe(single, cut, [AXIS_ROWS, 1, cut.shape[2]])
    for node in region:
        for place, value in enumerate(node.inputs):
            if value is cut:
                node.replace_input_with(place, single.outputs[0])
        shape = node.outputs[0].shape
        assert shape is not None
        node.outputs[0].shape = ir.Shape([AXIS_ROWS, 1, *list(shape)[2:]])
    graph.insert_before(first, [flat, rows, single])
    width = logits.shape[2]
    sizes = ir.tensor(np.array([-1, width], np.int64))
    joined = ir.node(
        "Reshape",
        [logits, add_constant(graph, f"{LOGITS_INDEX}/row", sizes)],
        name=f"{LOGITS_INDEX}/join",
    )
    _describe(joined, logits, [AXIS_ROWS, width])
    _take_over_output(graph, logits, joined.outputs[0])
    graph.append(joined)
    return str(cut.name)


def _per_token_path(logits: ir.Value) -> list[ir.Node]:
    """The ops that make the logits, last first, as far back as each works on single tokens."""
    path: list[ir.Node] = []
    value = logits
    while (node := value.producer()) is not None and _is_per_token(node):
        source = node.inputs[0]
        if source is None or source.shape is None or len(source.shape) != 3:
            break
        path.append(node)
        value = source
        if len(value.uses()) != 1:
            break  # something else reads every token of it
    return path


def _is_per_token(node: ir.Node) -> bool:
    """Whether each row of the output needs only the same row of the first input."""
    if len(node.outputs) != 1:
        return False
    rest = [value for value in node.inputs[1:] if value is not None]
    ranks = [len(value.shape) if value.shape is not None else 9 for value in rest]
    if node.op_type in _PRODUCTS:
        return ranks == [2]
    if node.domain != "":
        return False
    if node.op_type in _UNARY:
        return True
    if node.op_type in _NORMS:
        axis = node.attributes.get_int("axis", -1)
        return axis in (-1, 2) and all(rank <= 1 for rank in ranks)
    # The second operand is spread over the tokens alike when it has no axis but the last.
    return node.op_type in _BINARY and all(rank <= 1 for rank in ranks)


def _take_over_output(graph: ir.Graph, old: ir.Value, made: ir.Value) -> None:
    place = list(graph.outputs).index(old)
    old.name = f"{LOGITS}/all"
    made.name = LOGITS
    graph.outputs[place] = made
