"""Attention with its cache writes and masks: one op of the program for all of them.

A written cache is lowered as the tokens that write it, so whatever the graph does to whole caches
(a gather of slots, decompression of latent keys) is done to the tokens before they are stored. The
program's cache holds the keys and values as attention reads them. Masks are understood by their op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from qeff.compile.plan import layout as lay
from qeff.compile.plan.lowering import Fixed, Lowered, Lowering, Refusal, Tokens
from qeff.container.program import ABSENT
from qeff.core.spec import POSITION_IDS, CacheLayer

_MASKS = {"WindowMask": "window", "ChunkMask": "chunk", "AlibiBias": None}


@dataclass(frozen=True, slots=True)
class _Parts:
    """The inputs of an attention node by what they are; its two types order them apart."""

    query: ir.Value | None
    key: ir.Value | None
    value: ir.Value | None
    mask: ir.Value | None
    length: ir.Value | None
    sinks: ir.Value | None


def _parts(node: ir.Node) -> _Parts:
    given = [*node.inputs, *[None] * 7]
    if node.op_type == "SinkAttention":
        query, key, value, mask, length, sinks = given[:6]
        return _Parts(query, key, value, mask, length, sinks)
    query, key, value, mask = given[:4]
    return _Parts(query, key, value, mask, length=given[6], sinks=None)


def _cache_write(node: ir.Node, plan: Lowering) -> list[Lowered]:
    """A written cache stands for the tokens that write it: what is done to it is done to them."""
    cache, update, positions = node.inputs[:3]
    if cache is None or not cache.is_graph_input():
        raise Refusal("writes something that is no cache input")
    if positions is None or positions.name != POSITION_IDS:
        raise Refusal("writes its cache at other places than position_ids")
    found = _per_head(plan, update, "S", "an update")
    return [Tokens(found.index, tuple(("M",) if axis == ("S",) else axis for axis in found.layout))]


def _mask(node: ir.Node, plan: Lowering, parts: _Parts) -> tuple[dict[str, int], int]:
    """Window or chunk as attributes, and the index of ALiBi's slopes."""
    is_causal = bool(node.attributes.get_int("is_causal", 0))
    if parts.mask is None:
        if not is_causal or parts.length is None:
            raise Refusal("is neither causal over the cache nor masked")
        return {}, ABSENT
    mask = parts.mask.producer()
    if mask is None or mask.op_type not in _MASKS or is_causal:
        made_by = mask.op_type if mask is not None else "a graph input"
        raise Refusal(f"has a mask made by {made_by}, which no op of the program can say")
    if mask.inputs[0] is None or mask.inputs[0].name != POSITION_IDS:
        raise Refusal("has a mask of other positions than position_ids")
    attribute = _MASKS[mask.op_type]
    if attribute is not None:
        return {attribute: mask.attributes[attribute].as_int()}, ABSENT
    slopes = plan.read(mask.inputs[2])
    if not isinstance(slopes, Fixed):
        raise Refusal("has ALiBi slopes that are not constant")
    return {}, plan.weight(slopes.constant, (slopes.constant.tensor.size,))


def _per_head(plan: Lowering, value: ir.Value | None, rows: str, what: str) -> Tokens:
    """A query, key or value: [batch, heads, rows, dim]."""
    found = plan.read_tokens(value)
    is_shaped = (
        len(found.layout) == 4
        and (found.layout[0], found.layout[2]) == (("B",), (rows,))
        and not lay.all_tokens((found.layout[1], found.layout[3]))
    )
    if not is_shaped:
        raise Refusal(f"has {what} that is not [batch, heads, rows, dim]")
    return found


def _cache_of(plan: Lowering, key: int, value: int, window: int) -> tuple[int, bool]:
    """The cache that holds these keys and values, and whether this attention is the first to."""
    for place, made in enumerate(plan.cached):
        if made == (key, value):
            return place, False
    (heads, key_dim), (_, value_dim) = plan.shape_of(key), plan.shape_of(value)
    plan.draft.caches.append(CacheLayer(len(plan.cached), heads, key_dim, value_dim, window))
    plan.cached.append((key, value))
    return len(plan.cached) - 1, True


def _attention(node: ir.Node, plan: Lowering) -> list[Lowered]:
    parts = _parts(node)
    query = _per_head(plan, parts.query, "S", "a query")
    key = _per_head(plan, parts.key, "M", "a key").index
    value = _per_head(plan, parts.value, "M", "a value").index
    attrs, slopes = _mask(node, plan, parts)
    sinks = ABSENT
    if parts.sinks is not None:
        found = plan.read(parts.sinks)
        if not isinstance(found, Fixed):
            raise Refusal("has sinks that are not constant")
        sinks = plan.weight(found.constant, (found.constant.tensor.size,))
    cache, is_first = _cache_of(plan, key, value, attrs.get("window", 0))
    key_dim, value_dim = plan.shape_of(key)[1], plan.shape_of(value)[1]
    (index,) = plan.emit(
        "attention",
        [query.index, *((key, value) if is_first else (ABSENT, ABSENT)), sinks, slopes],
        cache=cache,
        value_dim=value_dim,
        scale=float(node.attributes.get_float("scale", key_dim**-0.5)),
        softcap=float(node.attributes.get_float("softcap", 0.0)),
        **attrs,
    )
    return [Tokens(index, lay.replace_axis(query.layout, 3, value_dim))]


def _demands(node: ir.Node) -> Sequence[ir.Value | None]:
    """A mask is understood by its op, and the count of cache rows is the session's business."""
    parts = _parts(node)
    return [parts.query, parts.key, parts.value, parts.sinks]


def _update_only(node: ir.Node) -> Sequence[ir.Value | None]:
    return node.inputs[1:2]


RULES: dict[str, Callable[[ir.Node, Lowering], list[Lowered]]] = {
    "Attention": _attention,
    "CacheWrite": _cache_write,
    "CacheWriteAt": _cache_write,
    "SinkAttention": _attention,
}
DEMANDS: dict[str, Callable[[ir.Node], Sequence[ir.Value | None]]] = {
    "Attention": _demands,
    "CacheWrite": _update_only,
    "CacheWriteAt": _update_only,
    "SinkAttention": _demands,
}
