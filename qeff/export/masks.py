"""Masks found by their numbers: a mask's part of the program is run on sample positions and named.

A mask that equals causal, sliding window, chunked or ALiBi becomes that op; any other stays as the
nodes it was traced to. Knows nothing about where a mask came from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from qeff.core.spec import BATCH_INDEX, INPUT_IDS, POSITION_IDS
from qeff.export.fxnode import Node

HIDDEN = -1e30  # a float mask below this hides the key
NEAR = torch.cat([torch.arange(0, 40)[None], torch.arange(17, 57)[None]])  # two rows of positions
FAR_SEED, FAR_COUNT, FAR_LENGTHS = 7, 48, (200_000, 30_000, 2_500)


@dataclass(frozen=True, slots=True)
class MaskName:
    """A mask in words: its kind and what it needs besides positions."""

    kind: str  # causal, window, chunk or alibi
    size: int = 0
    slopes: tuple[float, ...] = ()


def name_masks(program: ExportedProgram, inputs: Mapping[str, Node]) -> dict[int, int]:
    """Replace every mask that has a name; gives the window of each cache that has one."""
    graph = program.graph
    names: dict[Node, MaskName | None] = {}
    made: dict[tuple[Any, Node], Node] = {}
    windows: dict[int, int] = {}
    places = {node: i for i, node in enumerate(_caches(inputs).values())}
    length = _causal_length(program, inputs)
    for node in list(graph.nodes):
        if node.target is not torch.ops.qeff.attention.default or node.args[3] is None:
            continue
        mask, cache = node.args[3], _cache_of(node.args[1], inputs)
        if mask not in names:
            names[mask] = _name(program, mask, inputs)
        name = names[mask]
        if name is None or cache is None:
            continue
        args = list(node.args)
        if name.kind == "causal":
            if length is None:
                length = _insert_length(program, inputs)
            args[3], args[4] = None, length
        else:
            first = next(iter(_caches(inputs).values()))
            key = (name, first)
            if key not in made:
                made[key] = _insert(program, name, inputs[POSITION_IDS], first)
            args[3] = made[key]
        if name.kind == "window":
            windows[places[cache] // 2] = name.size
        node.args = tuple(args)
    graph.eliminate_dead_code()
    return windows


def _caches(inputs: Mapping[str, Node]) -> dict[str, Node]:
    known = (INPUT_IDS, POSITION_IDS, BATCH_INDEX)
    return {name: node for name, node in inputs.items() if name not in known}


def _cache_of(key: Any, inputs: Mapping[str, Node]) -> Node | None:
    """The cache input that an attention's keys were written into."""
    caches = set(_caches(inputs).values())
    while isinstance(key, Node) and key not in caches:
        if not key.args:
            return None
        key = key.args[0]
    return key if isinstance(key, Node) else None


# ---- naming


def _name(program: ExportedProgram, mask: Node, inputs: Mapping[str, Node]) -> MaskName | None:
    near = _sample(program, mask, inputs, NEAR, 64)
    if near is None:
        return None
    name = classify(near, NEAR)
    if name is None or name.kind != "causal":
        return name
    # Within 64 positions a long window looks causal: look again far away.
    for length in FAR_LENGTHS:
        seed = torch.Generator().manual_seed(FAR_SEED)
        positions = torch.randint(0, length, (1, FAR_COUNT), generator=seed).sort().values
        far = _sample(program, mask, inputs, positions, length)
        if far is not None:
            return classify(far, positions)
    return name


def _sample(
    program: ExportedProgram, mask: Node, inputs: Mapping[str, Node], positions: Tensor, length: int
) -> Tensor | None:
    feeds = {inputs[INPUT_IDS]: torch.zeros_like(positions), inputs[POSITION_IDS]: positions}
    rows = positions.shape[0]
    for node in _caches(inputs).values():
        shape = node.meta["val"].shape
        # Only the sizes are read: one element stands for the whole cache.
        feeds[node] = torch.zeros(1).expand(rows, shape[1], length, shape[3])
    if BATCH_INDEX in inputs:
        feeds[inputs[BATCH_INDEX]] = torch.arange(rows)[:, None]
    try:
        return evaluate(program, mask, feeds)
    except (LookupError, RuntimeError):
        return None  # it reads weights, or a table that ends earlier


def evaluate(program: ExportedProgram, node: Node, feeds: dict[Node, Any]) -> Any:
    """The value of a program node for these inputs; LookupError when it reads a parameter."""
    known = dict(feeds)
    todo = [node]
    while todo:
        current = todo[-1]
        if current in known:
            todo.pop()
            continue
        if current.op == "placeholder":
            known[current] = _stored(program, current)
            continue
        missing = [n for n in current.all_input_nodes if n not in known]
        if missing:
            todo.extend(missing)
            continue
        look: Any = known.__getitem__
        args, kwargs = torch.fx.map_arg((current.args, current.kwargs), look)
        known[current] = current.target(*args, **kwargs)
    return known[node]


def _stored(program: ExportedProgram, node: Node) -> Tensor:
    signature = program.graph_signature
    stored = {**signature.inputs_to_lifted_tensor_constants, **signature.inputs_to_buffers}
    name = stored.get(node.name)
    table = program.state_dict if name in program.state_dict else program.constants
    if name is None or name not in table:
        raise LookupError(node.name)
    return table[name]


def classify(mask: Tensor, positions: Tensor) -> MaskName | None:
    """The name of a mask [B, H or 1, S, M] over queries at ``positions`` [B, S]."""
    while mask.dim() < 4:
        mask = mask[None]
    p = positions[:, None, :, None]
    j = torch.arange(mask.shape[-1])
    seen = mask if mask.dtype == torch.bool else mask > HIDDEN
    if mask.dtype != torch.bool and bool((mask[seen] != 0).any()):
        return _alibi(mask, seen, p, j)
    past = j <= p
    if _equal(seen, past):
        return MaskName("causal")
    if not _equal(seen & past, seen):
        return None
    last = seen[:, :1].expand(*p.shape[:3], len(j))[..., :].sum(-1).max()
    if _equal(seen, past & (j > p - last)):
        return MaskName("window", int(last))
    first = (seen.int().argmax(-1)).flatten().tolist()
    chunk = math.gcd(*first)
    if chunk and _equal(seen, past & (j // chunk == p // chunk)):
        return MaskName("chunk", chunk)
    return None


def _equal(a: Tensor, b: Tensor) -> bool:
    wide = torch.broadcast_shapes(a.shape, b.shape)
    return bool((a.expand(wide) == b.expand(wide)).all())


def _alibi(mask: Tensor, seen: Tensor, p: Tensor, j: Tensor) -> MaskName | None:
    if not _equal(seen, j <= p):
        return None
    last = mask[:, :, -1:, :]  # the query that sees most keys
    far = int(p[0, 0, -1, 0])
    slopes = (last[0, :, 0, far] - last[0, :, 0, 0]) / far  # [H]
    ours = slopes[None, :, None, None] * (j - p)  # [B, H, S, M]
    rest = torch.where(seen, mask - ours, 0.0)
    # A softmax does not see a constant added to all keys of a query.
    shift = torch.where(seen, rest, rest[..., :1])
    if not torch.allclose(shift, shift[..., :1].expand_as(shift), atol=1e-4, rtol=1e-4):
        return None
    return MaskName("alibi", slopes=tuple(float(s) for s in slopes.double()))


# ---- writing


def _insert(program: ExportedProgram, name: MaskName, positions: Node, cache: Node) -> Node:
    ops = torch.ops.qeff
    target, extra = {
        "window": (ops.window_mask.default, name.size),
        "chunk": (ops.chunk_mask.default, name.size),
        "alibi": (ops.alibi_bias.default, list(name.slopes)),
    }[name.kind]
    graph = program.graph
    first = next(n for n in graph.nodes if n.op != "placeholder")
    with graph.inserting_before(first):
        node = graph.call_function(target, (positions, cache, extra))
    with positions.meta["val"].fake_mode:
        node.meta["val"] = target(positions.meta["val"], cache.meta["val"], extra)
    return node


def _causal_length(program: ExportedProgram, inputs: Mapping[str, Node]) -> Node | None:
    for node in program.graph.nodes:
        if node.target is torch.ops.qeff.attention.default and node.args[4] is not None:
            return node.args[4]
    return None


def _insert_length(program: ExportedProgram, inputs: Mapping[str, Node]) -> Node:
    """First position of each row + S, for attention that turns out to be plainly causal."""
    aten, graph = torch.ops.aten, program.graph
    positions = inputs[POSITION_IDS]
    value = positions.meta["val"]
    first = next(n for n in graph.nodes if n.op != "placeholder")
    with graph.inserting_before(first), value.fake_mode:
        steps: list[tuple[Any, tuple[Any, ...]]] = [
            (aten.select.int, (positions, 1, 0)),
            (aten.clamp.default, (None, 0)),
        ]
        node = positions
        for target, args in steps:
            args = tuple(node if a is None else a for a in args)
            node = graph.call_function(target, args)
            node.meta["val"] = target(*torch.fx.map_arg(args, lambda n: n.meta["val"]))
        size = graph.call_function(aten.sym_size.int, (positions, 1))
        size.meta["val"] = value.shape[1]
        out = graph.call_function(aten.add.Tensor, (node, size))
        out.meta["val"] = node.meta["val"] + value.shape[1]
    return out
