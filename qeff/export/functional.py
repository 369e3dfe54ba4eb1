"""Writes in-place ops of a traced program as ops that make new values.

Only where nothing else sees the memory afterwards: ``x.add_(y)`` becomes ``x + y``, and a copy into
a slice becomes a scatter. For anything less plain the caller has torch's own, slower pass.
"""

from __future__ import annotations

import operator

import torch

from qeff.export.fxnode import Graph, Node

aten = torch.ops.aten
# Composite ops whose result may or may not share memory with their input.
MAY_ALIAS = {
    *(aten.reshape.default, aten.contiguous.default, aten.flatten.using_ints, aten.to.dtype),
    *(aten.dropout.default, aten.to.device, aten.to.dtype_layout, aten.unflatten.int),
}


def make_functional(graph: Graph) -> bool:
    """Rewrite every in-place op; False when one cannot be, and the graph is to be left to torch."""
    place = {node: i for i, node in enumerate(graph.nodes)}
    changes = [node for node in graph.nodes if is_in_place(node)]
    for node in changes:
        if not _is_plain(node, place):
            return False
    for node in changes:
        _rewrite(graph, node, place)
    graph.eliminate_dead_code()
    return True


def is_in_place(node: Node) -> bool:
    """Whether a node writes into one of its inputs."""
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and schema.is_mutable


def _is_alias(node: Node) -> bool:
    """Whether a node's result may share memory with its first input."""
    if node.op != "call_function" or is_in_place(node):
        return False
    if node.target is operator.getitem:
        return _is_alias(node.args[0])
    schema = getattr(node.target, "_schema", None)
    if node.target in MAY_ALIAS:
        return True
    return schema is not None and any(r.alias_info is not None for r in schema.returns)


def _is_plain(node: Node, place: dict[Node, int]) -> bool:
    target = node.args[0]
    if node.target is not aten.copy_.default and _functional(node) is None:
        return False
    if _writes_slice(node):
        if node.target is aten.copy_.default and not _same_shape(node.args[0], node.args[1]):
            return False
        target = target.args[0]
    root = target
    while _is_alias(root):
        root = root.args[0]
    # Nobody may look at the same memory through another name afterwards.
    names, todo = set(), [root]
    while todo:
        name = todo.pop()
        names.add(name)
        todo += [user for user in name.users if _is_alias(user) and user not in names]
    if root.op == "placeholder":
        return False
    here = place[node]
    others = names - {target, node.args[0]}
    # Names made later are made from the fresh value.
    return not any(place[name] < here < _last_use(name, place) for name in others)


def _last_use(node: Node, place: dict[Node, int]) -> int:
    return max((place[user] for user in node.users), default=-1)


def _writes_slice(node: Node) -> bool:
    return node.args[0].target is aten.slice.Tensor


def _same_shape(a: Node, b: Node) -> bool:
    return a.meta["val"].shape == b.meta["val"].shape and a.meta["val"].dtype == b.meta["val"].dtype


def _functional(node: Node) -> object | None:
    packet, overload = str(node.target).removeprefix("aten.").split(".")
    if not packet.endswith("_"):
        return None
    found = getattr(aten, packet.removesuffix("_"), None)
    return getattr(found, overload, None) if found is not None else None


def _rewrite(graph: Graph, node: Node, place: dict[Node, int]) -> None:
    written = node.args[0]
    with graph.inserting_before(node):
        if node.target is aten.copy_.default and _writes_slice(node):
            fresh = node.args[1]
        else:
            fresh = graph.call_function(_functional(node), node.args, node.kwargs)
            _inherit(fresh, node, node)
            place[fresh] = place[node]
        if _writes_slice(node):
            base, cut = written.args[0], written.args[1:]
            whole = graph.call_function(aten.slice_scatter.default, (base, fresh, *cut))
            _inherit(whole, base, node)
            place[whole] = place[node]
            _replace_after(base, whole, place[node], place)
    _replace_after(written, fresh, place[node], place)
    node.replace_all_uses_with(fresh)
    graph.erase_node(node)


def _inherit(node: Node, value_of: Node, scope_of: Node) -> None:
    node.meta = dict(value_of.meta)
    node.meta["nn_module_stack"] = scope_of.meta.get("nn_module_stack", {})


def _replace_after(old: Node, new: Node, when: int, place: dict[Node, int]) -> None:
    for user in list(old.users):
        if place[user] > when:
            user.replace_input_with(old, new)
