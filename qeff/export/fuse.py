"""Finds attention that a model wrote out by hand, softmax(q k + bias) v, and puts the one op there.

Works on the traced program of models that use neither transformers' attention interface nor
torch's attention function. A pattern that does not fit is left as it is: right, only longer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import ExportedProgram

from qeff.export.fxnode import Graph, Node

aten = torch.ops.aten
PASS = {
    *(aten.to.dtype, aten.clone.default, aten.contiguous.default, aten.dropout.default),
    *(aten.alias.default, aten._to_copy.default, aten.type_as.default, aten.detach.default),
}
VIEW = {aten.view.default, aten.reshape.default, aten._unsafe_view.default}
MATMUL = {aten.matmul.default, aten.bmm.default}
SCALE = {aten.mul.Tensor, aten.div.Tensor}
FILL = {aten.masked_fill.Scalar, aten.masked_fill.Tensor}
MAX = {aten.maximum.default, aten.max.other}
SOFTMAX = {aten.softmax.int, aten._softmax.default}
LOWEST = torch.finfo(torch.float32).min


@dataclass(slots=True)
class _Scores:
    """What stands between the product of queries and keys and the softmax."""

    query: Node
    key: Node  # already transposed
    scale: float = 1.0
    biases: list[tuple[Node, float]] = field(default_factory=list)
    masks: list[Node] = field(default_factory=list)  # true: not seen


def fuse_attention(program: ExportedProgram) -> int:
    """Replace every hand-written attention that is recognised; gives their number."""
    count = 0
    for node in list(program.graph.nodes):
        if node.op == "call_function" and node.target in SOFTMAX and _is_last_axis(node):
            count += _fuse(program, node)
    program.graph.eliminate_dead_code()
    return count


def _is_last_axis(node: Node) -> bool:
    return node.args[1] in (-1, _value(node).dim() - 1)


def _value(node: Node) -> torch.Tensor:
    return node.meta["val"]


def _fuse(program: ExportedProgram, softmax: Node) -> bool:
    scores = _read_scores(program, softmax.args[0])
    product = _product_after(softmax)
    if scores is None or product is None:
        return False
    graph = program.graph
    with graph.inserting_before(product):
        make = _maker(graph)
        query, value = _four_axes(scores.query), _four_axes(product.args[1])
        key = _keys(scores.key, make)
        if query is None or key is None or value is None:
            return False
        mask = _mask(scores, query, make)
        args = (query, key, value, mask, None, None, scores.scale, 0.0)
        out = make(torch.ops.qeff.attention.default, *args)
        out.meta["nn_module_stack"] = softmax.meta.get("nn_module_stack")
        if _value(product).dim() == 3:  # [B * H, S, Dv]
            out = graph.call_function(aten.view.default, (out, []))
            out.meta = dict(product.meta)
        product.replace_all_uses_with(out)
    return True


def _maker(graph: Graph) -> Callable[..., Node]:
    mode = next(
        n.meta["val"].fake_mode for n in graph.nodes if hasattr(n.meta.get("val"), "fake_mode")
    )

    def make(target: Any, *args: Any) -> Node:
        node = graph.call_function(target, args)
        with mode:
            node.meta["val"] = target(*torch.fx.map_arg(args, lambda n: n.meta["val"]))
        return node

    return make


def _read_scores(program: ExportedProgram, node: Node) -> _Scores | None:
    """Walk from the softmax back to the product of queries and keys."""
    scale, biases, masks = 1.0, [], []
    while isinstance(node, Node) and node.op == "call_function":
        target = node.target
        if target in PASS or target in VIEW or _is_floor(node):
            node = node.args[0]
        elif target in SCALE:
            number = _number(program, node.args[1])
            if number is None:
                return None
            scale *= number if target is aten.mul.Tensor else 1.0 / number
            node = node.args[0]
        elif target is aten.add.Tensor:
            left, right = node.args[:2]
            if _reaches_product(left):
                node, bias = left, right
            elif _reaches_product(right):
                node, bias = right, left
            else:
                return None
            biases.append((bias, scale))
        elif target in FILL:
            masks.append(node.args[1])
            node = node.args[0]
        elif target is aten.where.self and _reaches_product(node.args[1]):
            program.graph.inserting_after(node.args[0])
            masks.append(_negated(program.graph, node.args[0]))
            node = node.args[1]
        elif target in MATMUL:
            return _Scores(node.args[0], node.args[1], scale, biases, masks)
        elif target is aten.baddbmm.default:
            biases.append((node.args[0], scale * node.kwargs.get("beta", 1)))
            scale *= node.kwargs.get("alpha", 1)
            return _Scores(node.args[1], node.args[2], scale, biases, masks)
        else:
            return None
    return None


def _negated(graph: Graph, mask: Node) -> Node:
    with graph.inserting_after(mask):
        node = graph.call_function(aten.logical_not.default, (mask,))
    node.meta["val"] = mask.meta["val"]
    return node


def _reaches_product(node: Any, depth: int = 12) -> bool:
    while depth and isinstance(node, Node) and node.op == "call_function":
        depth -= 1
        if node.target in MATMUL or node.target is aten.baddbmm.default:
            return _value(node).dim() in (3, 4)
        if node.target in PASS | VIEW | SCALE | FILL or _is_floor(node):
            node = node.args[0]
        elif node.target is aten.where.self:
            node = node.args[1]
        elif node.target is aten.add.Tensor:
            return any(_reaches_product(arg, depth) for arg in node.args[:2])
        else:
            return False
    return False


def _is_floor(node: Node) -> bool:
    """Whether a node keeps scores from falling below the lowest number, which masks do anyhow."""
    floor: Any = node.args[1] if node.target in MAX else None
    return isinstance(floor, Node) and floor.target is aten.full.default and floor.args[1] == LOWEST


def _number(program: ExportedProgram, arg: Any) -> float | None:
    if isinstance(arg, int | float):
        return float(arg)
    signature = program.graph_signature
    stored = {**signature.inputs_to_lifted_tensor_constants, **signature.inputs_to_buffers}
    name = stored.get(getattr(arg, "name", ""))
    table = program.state_dict if name in program.state_dict else program.constants
    tensor = table.get(name)
    return float(tensor) if tensor is not None and tensor.numel() == 1 else None


def _product_after(softmax: Node) -> Node | None:
    """The product with the values, through casts and views that nobody else reads."""
    node = softmax
    while len(node.users) == 1:
        (node,) = node.users
        if node.target in MATMUL:
            return node
        if node.target not in PASS | VIEW:
            return None
    return None


def _four_axes(node: Node) -> Node | None:
    """The value as [B, H, S, D], before it was flattened to [B * H, S, D]."""
    while node.target in PASS:
        node = node.args[0]
    if _value(node).dim() == 4:
        return node
    if node.target in VIEW and _value(node.args[0]).dim() == 4:
        return node.args[0]
    return None


def _keys(key: Node, make: Callable[..., Node]) -> Node | None:
    """The keys before their last two axes were swapped, as [B, H, M, D]."""
    node = key
    while node.target in PASS:
        node = node.args[0]
    rank = _value(node).dim()
    if node.target is aten.transpose.int:
        swapped = sorted(axis % rank for axis in node.args[1:]) == [rank - 2, rank - 1]
    elif node.target is aten.permute.default:
        swapped = [a % rank for a in node.args[1]] == [*range(rank - 2), rank - 1, rank - 2]
    else:
        swapped = False
    found = _four_axes(node.args[0]) if swapped else None
    if found is not None:
        return found
    four = _four_axes(key)
    return None if four is None else make(aten.transpose.int, four, 2, 3)


def _mask(scores: _Scores, query: Node, make: Callable[..., Node]) -> Node | None:
    mask = None
    heads = _value(query).shape[1]
    for bias, scale in scores.biases:
        if not isinstance(bias, Node):
            continue  # a number changes nothing under a softmax
        bias = _mask_axes(bias, heads, make)
        bias = bias if scale == 1.0 else make(aten.mul.Tensor, bias, scale)
        mask = bias if mask is None else make(aten.add.Tensor, mask, bias)
    for hidden in scores.masks:
        base = make(aten.scalar_tensor.default, 0.0) if mask is None else mask
        lowest = make(aten.scalar_tensor.default, LOWEST)
        mask = make(aten.where.self, _mask_axes(hidden, heads, make), lowest, base)
    return mask


def _mask_axes(node: Node, heads: Any, make: Callable[..., Node]) -> Node:
    value = _value(node)
    if value.dim() == 3 and value.shape[0] != heads and value.shape[0] != 1:
        return make(aten.unflatten.int, node, 0, [-1, int(heads)])  # [B * H, ...] -> [B, H, ...]
    while _value(node).dim() < 4:
        node = make(aten.unsqueeze.default, node, 0)
    return node
