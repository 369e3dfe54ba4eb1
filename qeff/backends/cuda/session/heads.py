"""An attention op and what stands before it: where heads lie, their norms and their rotation.

Queries, keys and values are followed back to the value that they are columns of. A rotation by
tables of positions and a norm of each head go into the attention; anything else stays an op of its
own. Knows nothing of kernels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from qeff.backends.cuda.session.attention import AttentionSpec, Rope
from qeff.backends.cuda.session.flow import Flow
from qeff.backends.cuda.session.stages import Attend, Heads
from qeff.container.program import ABSENT

if TYPE_CHECKING:
    from qeff.backends.cuda.session.building import Store


@dataclass(frozen=True, slots=True)
class Source:
    """A value as the heads before attention: what was found on the way back to it."""

    value: int  # before any of it
    rope: tuple[int, int, bool] | None = None  # values of cos and sin, interleaved
    gain: int | None = None
    eps: float = 0.0


def attention_stage(flow: Flow, place: int, fixed: set[int], store: Store) -> Attend:
    """The stage of an attention op."""
    op, inputs, attrs = flow.program.ops[place], flow.inputs[place], flow.attrs(place)
    given: list[int | None] = [None if i == ABSENT else i for i in (*inputs, *[ABSENT] * 5)[:5]]
    query = given[0]
    assert query is not None, "the rule of attention was checked"
    layer = flow.program.caches[int(attrs["cache"])]  # type: ignore[call-overload]
    sources = _sources(flow, fixed, query, given[1])
    turn = sources[0].rope
    spec = AttentionSpec(
        **_numbers(attrs),
        num_heads=flow.shape(query)[0],
        num_kv_heads=layer.num_kv_heads,
        key_dim=layer.key_dim,
        by_row=bool(attrs["by_row"]) and not flow.same_rows,
        rope=None if turn is None else Rope(store.table(turn[0]), store.table(turn[1]), turn[2]),
        q_gain=None if sources[0].gain is None else store.plain(sources[0].gain),
        k_gain=None if sources[1].gain is None else store.plain(sources[1].gain),
        eps=max(source.eps for source in sources),
        sinks=None if given[3] is None else store.plain(given[3]),
        slopes=None if given[4] is None else store.plain(given[4]),
    )
    parts = [_locate(flow, sources[0].value, query)]
    if given[1] is not None and given[2] is not None:
        parts.append(_locate(flow, sources[1].value, given[1]))
        parts.append(_locate(flow, given[2], given[2]))
    reads = tuple(dict.fromkeys(part.value for part in parts))
    has_keys = len(parts) > 1
    return Attend(
        spec,
        int(attrs["cache"]),  # type: ignore[call-overload]
        parts[0],
        parts[1] if has_keys else None,
        parts[2] if has_keys else None,
        reads,
        op.outputs,
    )


def _numbers(attrs: dict[str, Any]) -> dict[str, Any]:
    return {name: attrs[name] for name in ("scale", "softcap", "window", "chunk", "value_dim")}


def _sources(flow: Flow, fixed: set[int], query: int, key: int | None) -> tuple[Source, Source]:
    """Of queries and keys what fits one attention: the same rotation of both, or none."""
    found = [Source(query)] if key is None else [Source(query), Source(key)]
    turned = [_unturn(flow, fixed, source) for source in found]
    if len({source.rope for source in turned}) == 1:
        found = turned
    plain = [_without_norm(flow, source) for source in found]
    if len({source.eps for source in plain if source.gain is not None}) <= 1:
        found = plain
    return found[0], found[-1] if key is not None else Source(-1)


def _unturn(flow: Flow, fixed: set[int], source: Source) -> Source:
    """Before the rotation, where its tables follow from positions."""
    place = flow.maker.get(source.value)
    if place is None or flow.program.ops[place].kind != "rope":
        return source
    x, cos, sin = flow.inputs[place]
    if cos not in fixed or sin not in fixed or len(flow.shape(x)) != 2:
        return source
    is_interleaved = bool(flow.attrs(place)["interleaved"])
    return replace(source, value=x, rope=(_root(flow, cos), _root(flow, sin), is_interleaved))


def _root(flow: Flow, index: int) -> int:
    """The table itself: rows asked for have the same one as tokens."""
    op = flow.made_by(index)
    while op is not None and op.kind == "gather_rows":
        index = flow.resolve(op.inputs[0])
        op = flow.made_by(index)
    return index


def _without_norm(flow: Flow, source: Source) -> Source:
    """Before the norm of each head, where it is a plain one."""
    place = flow.maker.get(source.value)
    if place is None or flow.program.ops[place].kind != "norm":
        return source
    inputs, attrs = flow.inputs[place], flow.attrs(place)
    has_bias = len(inputs) > 2 and inputs[2] != ABSENT
    has_gain = len(inputs) > 1 and inputs[1] != ABSENT
    if attrs["function"] != "rms" or has_bias or not has_gain or len(flow.shape(inputs[0])) != 2:
        return source
    eps = attrs["eps"]
    assert isinstance(eps, float), "the rule of a norm was checked"
    return replace(source, value=inputs[0], gain=inputs[1], eps=eps)


def _locate(flow: Flow, index: int, shaped: int) -> Heads:
    """The value that heads are neighbouring columns of; ``shaped`` has their number and size."""
    heads, dim = flow.shape(shaped)
    start = 0
    while (op := flow.made_by(index)) is not None:
        place = flow.maker[index]
        if op.kind == "slice":
            attrs = flow.attrs(place)
            inner = flow.shape(flow.inputs[place][0])
            if attrs["axis"] != 0 or attrs["step"] != 1:
                break
            start += int(attrs["start"]) * math.prod(inner[1:])  # type: ignore[call-overload]
        elif op.kind != "reshape":
            break
        index = flow.inputs[place][0]
    return Heads(index, start, heads, dim)
