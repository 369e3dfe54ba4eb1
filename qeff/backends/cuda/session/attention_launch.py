"""Launches of the attention kernels: sizes of tiles, and arguments from what a call brings.

A plan says how a kernel is compiled. Tiles and warps of the usual ones were measured on an H200,
their stages follow from the room that these leave. Knows nothing of which kernel a step takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton.language as tl

from qeff.backends.cuda.session.attention_spec import (
    SPLIT_UNITS,
    AttentionSpec,
    Pads,
    Work,
    num_splits,
)
from qeff.backends.cuda.session.cache import LayerCache
from qeff.backends.cuda.session.kernels import cache_rows
from qeff.backends.cuda.session.kernels.attend_few import FUSED, SPANS, attend_few
from qeff.backends.cuda.session.kernels.attend_many import attend_many
from qeff.backends.cuda.session.kernels.rope_write import rope_write
from qeff.backends.cuda.session.kernels.scores import LOG2E
from qeff.backends.cuda.session.launch import settings
from qeff.backends.cuda.session.step_info import StepInfo

_DTYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
_CODES = {"fp8": cache_rows.FP8, "mxint8": cache_rows.MXINT8}


@dataclass(frozen=True, slots=True)
class Call:
    """What a layer gets in a step; see ``attention.attend``."""

    spec: AttentionSpec
    q: torch.Tensor
    k: torch.Tensor | None
    v: torch.Tensor | None
    cache: LayerCache
    info: StepInfo
    out: torch.Tensor
    work: Work

    @property
    def num_queries(self) -> int:
        """Rows of the queries and of the result."""
        return self.info.num_rows if self.spec.by_row else self.info.num_tokens

    @property
    def turns_queries(self) -> bool:
        """Whether queries differ from what came in."""
        return self.spec.rope is not None or self.spec.q_gain is not None

    @property
    def queries(self) -> torch.Tensor:
        """Rotated queries [num_queries, heads, key_dim], once they are written."""
        if not self.turns_queries:
            return self.q
        shape = (self.num_queries, self.spec.num_heads, self.spec.key_dim)
        size = shape[0] * shape[1] * shape[2]
        assert size <= self.work.queries.numel(), f"no room for {shape[0]} rotated queries"
        return self.work.queries[:size].view(shape)


class FewPlan(NamedTuple):
    """How :func:`launch_few` is compiled."""

    tile: int
    num_warps: int
    stages: int
    splits: int
    least_tiles: int = 1  # a part has at least as many
    early: bool = True  # with FUSED: rows are read before the kernel in front is done


class ManyPlan(NamedTuple):
    """How :func:`launch_many` is compiled."""

    queries: int
    tile: int
    num_warps: int
    stages: int


def row_bytes(call: Call) -> int:
    """Bytes of one padded row of keys or values as products take it."""
    pads = Pads.of(call.spec)
    size = 4 if call.out.dtype == torch.float32 else 2
    return max(pads.key, pads.value) * size


def few_plan(call: Call, mode: int) -> FewPlan:
    """What is best for few queries."""
    num = call.info.num_spans if mode == SPANS else call.num_queries
    num_units = num * call.spec.num_kv_heads * Pads.of(call.spec).parts
    size = row_bytes(call)
    if mode == FUSED and num_units < SPLIT_UNITS:
        # A step's time is that of one program: all its rows are on their way before the kernel in
        # front is done, in one tile. 8 parts of 128 of 1024 rows took 5.1 µs with 64 dims, 7.6 with
        # 128; with more parts of fewer rows it takes longer.
        tile = min(128, max(16, 32768 // size))
        splits = num_splits(num_units, call.info.longest, tile)
        return FewPlan(tile, 4 if splits > 2 and tile * size >= 32768 else 8, 2, splits, early=True)
    # 512 sequences of 1500 rows: 4.4 TB/s with bf16, 3.9 with fp8, 2.0 with mxint8.
    tile = min(64, max(16, 16384 // size))
    splits = num_splits(num_units, call.info.longest, tile)
    num_warps = 2 if call.cache.format in ("fp8", "mxint8") else 4
    stages = 4 if call.cache.format == "mxint8" else 3
    if call.cache.format == "f32" and size > 2048:
        stages = 2  # three of 576 dims are 257 kB, more than a multiprocessor's shared memory
    return FewPlan(tile, num_warps, stages, splits, early=False)


def many_plan(call: Call) -> ManyPlan:
    """What is best for many queries."""
    # Of 4096 tokens with 128 dims, 64 queries of four warps did 453 TFLOP/s and 128 of eight less;
    # with 64 dims 364, and 128 queries 378. Three stages leave room for two programs side by side.
    size = row_bytes(call)
    tile = min(64, max(16, 16384 // size))
    if size <= 128:
        return ManyPlan(128, tile, 4, 3)
    return ManyPlan(min(64, max(16, 32768 // size)), tile, 4, 2 if size > 512 else 3)


def _format(call: Call) -> dict[str, Any]:
    spec, pads, cache = call.spec, Pads.of(call.spec), call.cache
    assert (cache.key_dim, cache.value_dim) == (spec.key_dim, spec.value_dim), "another cache"
    return {
        "KEY_DIM": spec.key_dim,
        "VALUE_DIM": spec.value_dim,
        "KEY_PAD": pads.key,
        "VALUE_PAD": pads.value,
        "KV_HEADS": spec.num_kv_heads,
        "BLOCK_LEN": cache.block_len,
        "FORMAT": _CODES.get(cache.format, cache_rows.PLAIN),
        **settings(call.q.device),
    }


def _heads(call: Call, least_queries: int) -> dict[str, Any]:
    spec, pads, is_bent = call.spec, Pads.of(call.spec), bool(call.spec.softcap)
    dot = call.out.dtype
    if dot == torch.bfloat16 and call.cache.format == "fp8":
        dot = torch.float16  # E4M3 becomes f16 in one instruction, and nothing is lost
    if call.q.device.type != "cuda":
        dot = torch.float32  # the interpreter has no product of bf16
    return {
        "sinks": spec.sinks,
        "slopes": spec.slopes,
        "scale": spec.scale if is_bent else spec.scale * LOG2E,
        "softcap": spec.softcap,
        "window": spec.window,
        "chunk": spec.chunk,
        "GROUP": spec.num_heads // spec.num_kv_heads,
        "GROUP_PAD": pads.group,
        "PARTS": pads.parts,
        "QUERIES": max(pads.group, least_queries),
        "DOT": _DTYPES[dot],
        "CAPPED": is_bent,
        "SINK": spec.sinks is not None,
        "SLOPED": spec.slopes is not None,
    }


def _turning(call: Call) -> dict[str, Any]:
    spec, rope = call.spec, call.spec.rope
    return {
        "cos": None if rope is None else rope.cos,
        "sin": None if rope is None else rope.sin,
        "q_gain": spec.q_gain,
        "k_gain": spec.k_gain,
        "eps": spec.eps,
        "HALF": 0 if rope is None else rope.cos.shape[1],
        "INTERLEAVED": rope is not None and rope.interleaved,
        "Q_NORM": spec.q_gain is not None,
        "K_NORM": spec.k_gain is not None,
    }


def _rows(name: str, x: torch.Tensor | None) -> dict[str, Any]:
    """A view [tokens, heads, dims] and its strides."""
    if x is None:
        return {name: None, f"{name}_token": 0, f"{name}_head": 0}
    assert x.stride(2) == 1, f"dims of {name} lie side by side"
    return {name: x, f"{name}_token": x.stride(0), f"{name}_head": x.stride(1)}


def _cache(cache: LayerCache) -> dict[str, Any]:
    return {
        "keys": cache.keys,
        "key_scales": cache.key_scales,
        "values": cache.values,
        "value_scales": cache.value_scales,
    }


def _tree(info: StepInfo) -> dict[str, Any]:
    bits = info.ancestors
    return {"ancestors": bits, "words": 0 if bits is None else bits.stride(0)}


def launch_rope_write(call: Call, *, has_q: bool, has_kv: bool, num_warps: int = 2) -> None:
    """Rotate queries into their buffer, and write keys and values; both at once or one of them."""
    spec, info, tile = call.spec, call.info, 8
    num_tiles = -(-spec.num_heads // tile) * has_q + 2 * -(-spec.num_kv_heads // tile) * has_kv
    by_row = spec.by_row and has_q
    assert not (by_row and has_kv), "rows are rotated by a launch of their own"
    rope_write[(call.num_queries if has_q else info.num_tokens, num_tiles)](
        **_rows("q", call.q),
        q_out=call.queries if has_q else None,
        **_rows("k", call.k),
        **_rows("v", call.v),
        **_cache(call.cache),
        positions=info.positions,
        owners=info.owners,
        slots=info.slots,
        tables=info.tables,
        table_stride=info.tables.stride(0),
        rows=info.rows,
        HEADS=spec.num_heads,
        TILE=tile,
        BY_ROW=by_row,
        HAS_Q=has_q,
        HAS_KV=has_kv,
        num_warps=num_warps,
        **_turning(call),
        **_format(call),
    )


def launch_few(call: Call, mode: int, plan: FewPlan) -> None:
    """A program for each query, kv head and part; the queries of FUSED are not rotated yet."""
    spec, info, work = call.spec, call.info, call.work
    pads, is_fused = Pads.of(spec), mode == FUSED
    num = call.num_queries if mode != SPANS else info.num_spans
    num_units = spec.num_kv_heads * pads.parts * num
    assert plan.splits == 1 or (
        num_units <= work.counters.numel()
        and num_units * plan.splits * pads.group * pads.value <= work.partials.numel()
    ), "no room for parts"
    is_tree = info.ancestors is not None and not info.is_decode
    attend_few[(spec.num_kv_heads * pads.parts, plan.splits, num)](
        **_rows("q", call.q if is_fused else call.queries),
        **_rows("k", call.k if is_fused else None),
        **_rows("v", call.v if is_fused else None),
        out=call.out,
        **_cache(call.cache),
        partials=work.partials,
        stats=work.stats,
        counters=work.counters,
        positions=info.positions,
        owners=info.owners,
        slots=info.slots,
        starts=info.starts,
        firsts=info.firsts,
        tables=info.tables,
        table_stride=info.tables.stride(0),
        rows=info.rows,
        **_tree(info),
        TILE=plan.tile,
        SPLITS=plan.splits,
        LEAST_TILES=plan.least_tiles,
        MODE=mode,
        BY_ROW=spec.by_row,
        TREE=is_tree,
        EARLY=plan.early and is_fused,
        STAGES=plan.stages,
        num_warps=plan.num_warps,
        **_turning(call),
        **_heads(call, 16),
        **_format(call),
    )


def launch_many(call: Call, plan: ManyPlan, *, least: int) -> None:
    """A program for each tile of queries of spans of ``least`` tokens or more, and kv head."""
    spec, info, pads = call.spec, call.info, Pads.of(call.spec)
    heads = _heads(call, plan.queries)
    tokens = heads["QUERIES"] // pads.group
    num_tiles = info.num_rows if spec.by_row else info.num_tokens // tokens + info.num_spans
    attend_many[(spec.num_kv_heads * pads.parts, num_tiles)](
        **_rows("q", call.queries),
        out=call.out,
        **_cache(call.cache),
        positions=info.positions,
        owners=info.owners,
        starts=info.starts,
        num_spans=info.num_spans,
        firsts=info.firsts,
        tables=info.tables,
        table_stride=info.tables.stride(0),
        rows=info.rows,
        **_tree(info),
        least=least,
        TILE=plan.tile,
        BY_ROW=spec.by_row,
        TREE=info.ancestors is not None,
        BOUNDED=bool(spec.window or spec.chunk),
        STAGES=plan.stages,
        num_warps=plan.num_warps,
        **heads,
        **_format(call),
    )
