"""attention: write keys and values into a paged cache, then attend over what the cache holds.

A query at position p sees the rows of its own sequence with a position of at most p, fewer with a
``window`` (p − window < j) or a ``chunk`` (both in the same stretch of that length). In a step with
``parents`` it sees the rows before the step and its own ancestors. Without k and v nothing is
written: the layer shares the cache of an earlier one. Queries may be those of the requested rows
alone, while keys and values are always written for every token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qeff.ops.base import (
    Array,
    Attribute,
    Attrs,
    Input,
    Inputs,
    OpKind,
    RuleError,
    Step,
    as_float,
    given,
    known,
    present,
)


def _rule(inputs: Inputs, attrs: Attrs) -> list[tuple[tuple[int, ...], str]]:
    q, k, v = known(inputs, 0), present(inputs, 1), present(inputs, 2)
    if len(q.shape) != 2:
        raise RuleError(f"has queries {q.shape}, not (heads, dim)")
    if (q.kind == "row") != attrs["by_row"]:
        raise RuleError(f"has queries that are {q.kind} values, but by_row {attrs['by_row']}")
    if (k is None) != (v is None):
        raise RuleError("has keys without values or values without keys")
    if k is not None:
        if len(k.shape) != 2 or len(v.shape) != 2 or k.shape[0] != v.shape[0]:
            raise RuleError(f"has keys {k.shape} and values {v.shape}")
        if k.shape[1] != q.shape[1] or k.shape[0] < 1 or q.shape[0] % k.shape[0]:
            raise RuleError(f"has queries {q.shape} for keys {k.shape}")
        if v.shape[1] != attrs["value_dim"]:
            raise RuleError(f"has values {v.shape}, but value_dim {attrs['value_dim']}")
    for per_head in (present(inputs, 3), present(inputs, 4)):
        if per_head is not None and per_head.shape != q.shape[:1]:
            raise RuleError(f"has sinks or slopes {per_head.shape} for {q.shape[0]} heads")
    return [((q.shape[0], attrs["value_dim"]), q.dtype)]


def _write(cache: Array, update: Array, step: Step) -> None:
    """Put each token's keys or values into its row of the paged cache."""
    for owner, table in enumerate(step.tables):
        mine = np.flatnonzero(step.owners == owner)
        rows = step.slots[mine]
        cache[table[rows // step.block_len], rows % step.block_len] = update[mine]


def _visible(
    step: Step, mine: Array, asking: Array, num_rows: int, attrs: Attrs
) -> tuple[Array, Array]:
    """Which cache rows some tokens of a sequence see, bool [S, M], and their distances [S, M]."""
    first = int(step.slots[mine[0]])
    key_positions = np.arange(num_rows)
    key_positions[step.slots[mine]] = step.positions[mine]
    query_positions = step.positions[asking][:, None]
    seen = key_positions <= query_positions
    if step.parents is not None:
        seen = np.broadcast_to(np.arange(num_rows) < first, seen.shape).copy()
        for i, token in enumerate(asking):
            ancestor = int(token)
            while ancestor >= 0:
                seen[i, step.slots[ancestor]] = True
                ancestor = int(step.parents[ancestor])
    if attrs["window"]:
        seen = seen & (query_positions - attrs["window"] < key_positions)
    if attrs["chunk"]:
        seen = seen & (key_positions // attrs["chunk"] == query_positions // attrs["chunk"])
    return seen, key_positions - query_positions


def _reference(inputs: Sequence[Array | None], attrs: Attrs, step: Step) -> list[Array]:
    q, k, v = given(inputs, 0), present(inputs, 1), present(inputs, 2)
    sinks, slopes = present(inputs, 3), present(inputs, 4)
    keys, values = step.caches[attrs["cache"]]
    if k is not None:
        _write(keys, k, step)
        _write(values, v, step)
    num_heads, num_kv_heads = q.shape[1], keys.shape[2]
    out = np.zeros((*q.shape[:2], values.shape[3]), np.float32)
    queries = step.rows if attrs["by_row"] else np.arange(len(q))  # the token of each query
    for owner, table in enumerate(step.tables):
        mine = np.flatnonzero(step.owners == owner)
        places = np.flatnonzero(step.owners[queries] == owner)
        if not len(places):
            continue
        num_rows = int(step.slots[mine].max()) + 1
        blocks = table[: -(-num_rows // step.block_len)]
        # [blocks, block_len, kv heads, dim] -> [rows, kv heads, dim]
        key = as_float(keys[blocks].reshape(-1, *keys.shape[2:])[:num_rows])
        value = as_float(values[blocks].reshape(-1, *values.shape[2:])[:num_rows])
        query = as_float(q[places]).reshape(len(places), num_kv_heads, -1, q.shape[2])
        # One product for each head: [kv heads, group, S, dim] with [kv heads, 1, dim, M].
        scores = query.transpose(1, 2, 0, 3) @ key.transpose(1, 2, 0)[:, None]
        scores = scores * np.float32(attrs["scale"])
        scores = scores.reshape(num_heads, len(places), num_rows)
        if attrs["softcap"]:
            scores = np.tanh(scores / attrs["softcap"]) * np.float32(attrs["softcap"])
        seen, distance = _visible(step, mine, queries[places], num_rows, attrs)
        if slopes is not None:
            scores = scores + as_float(slopes)[:, None, None] * distance.astype(np.float32)
        scores = np.where(seen, scores, -np.inf)
        weights = _softmax(scores, sinks).reshape(num_kv_heads, -1, len(places), num_rows)
        mixed = weights @ value.transpose(1, 0, 2)[:, None]  # [kv heads, group, S, dim]
        out[places] = mixed.transpose(2, 0, 1, 3).reshape(len(places), num_heads, -1)
    return [out.astype(q.dtype, copy=False)]


def _softmax(scores: Array, sinks: Array | None) -> Array:
    """Softmax over the last axis of [heads, S, M]; a sink is one more logit that has no value."""
    top = scores.max(-1, keepdims=True)
    if sinks is not None:
        sink = as_float(sinks)[:, None, None]
        top = np.maximum(top, sink)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sink - top)
    return np.asarray(weights / total)


def _flops(inputs: Inputs, attrs: Attrs, num_tokens: int, context_len: int) -> int:
    q = known(inputs, 0)
    reach = min(context_len, attrs["window"] or attrs["chunk"] or context_len)
    return 2 * q.shape[0] * (q.shape[1] + int(attrs["value_dim"])) * int(reach) * num_tokens


OP = OpKind(
    inputs=(
        Input("q"),
        Input("k", ("token",), is_optional=True),
        Input("v", ("token",), is_optional=True),
        Input("sinks", ("weight",), is_optional=True),
        Input("slopes", ("weight",), is_optional=True),
    ),
    attributes=(
        Attribute("cache", int, is_required=True, minimum=0),
        Attribute("value_dim", int, is_required=True, minimum=1),
        Attribute("scale", float, is_required=True),
        Attribute("softcap", float, 0.0, minimum=0.0),
        Attribute("window", int, 0, minimum=0),
        Attribute("chunk", int, 0, minimum=0),
        Attribute("by_row", bool, False),
    ),
    is_led=True,
    rule=_rule,
    reference=_reference,
    flops=_flops,
    summary="softmax(scale · q·kᵀ) · v over the sequence's cache, after writing k and v into it",
)
