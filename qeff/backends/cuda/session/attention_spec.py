"""What a layer's attention is, and the room on the device that all layers share.

Knows the shapes of a group of query heads as kernels work on it; knows no kernel.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch

MAX_SPLITS = 32
PROGRAMS = 256  # as many programs as splitting aims at, where there is enough to split
SPLIT_UNITS = 128  # as many tokens and heads keep the GPU busy: 256 of 1024 rows are best unsplit


@dataclass(frozen=True, slots=True)
class Rope:
    """Tables f32 [positions, half] of the rotation; dims from 2 * half on are not rotated."""

    cos: torch.Tensor
    sin: torch.Tensor
    interleaved: bool = False


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """One layer's attention; 0 stands for no softcap, window or chunk."""

    scale: float
    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    softcap: float = 0.0
    window: int = 0
    chunk: int = 0
    by_row: bool = False  # queries are those of the step's rows
    rope: Rope | None = None
    q_gain: torch.Tensor | None = None  # [key_dim]: each head is normalised before its rotation
    k_gain: torch.Tensor | None = None
    eps: float = 1e-6
    sinks: torch.Tensor | None = None  # f32 [heads]
    slopes: torch.Tensor | None = None  # f32 [heads]

    def __post_init__(self) -> None:
        assert self.scale > 0, f"scores are scaled by {self.scale}"
        assert self.num_heads % self.num_kv_heads == 0, "query heads in equal groups"


class Pads(NamedTuple):
    """Sizes that kernels work on: powers of two that hold the real ones."""

    group: int  # query heads of a program
    parts: int  # programs that share the query heads of a kv head
    key: int
    value: int

    @classmethod
    def of(cls, spec: AttentionSpec) -> Pads:
        """Dims are padded to 32 or more, the dims that share a scale."""
        key, value = (max(32, _power_of_two(dim)) for dim in (spec.key_dim, spec.value_dim))
        heads = spec.num_heads // spec.num_kv_heads
        # Wide heads leave room for few of them.
        group = min(_power_of_two(heads), 16 if max(key, value) > 256 else 64)
        return cls(group, -(-heads // group), key, value)


def _power_of_two(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()


@dataclass(slots=True)
class Work:
    """Room of all layers: rotated queries, and what parts of a token found."""

    queries: torch.Tensor  # compute dtype, flat
    partials: torch.Tensor  # f32, flat
    stats: torch.Tensor  # f32, flat
    counters: torch.Tensor  # i32, all zero between launches

    @classmethod
    def make(
        cls,
        specs: Iterable[AttentionSpec],
        max_tokens: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> Work:
        """Room for steps of up to ``max_tokens`` tokens."""
        queries = partials = stats = 1
        for spec in specs:
            queries = max(queries, max_tokens * spec.num_heads * spec.key_dim)
            pads = Pads.of(spec)
            stats = max(stats, PROGRAMS * 2 * pads.group)
            partials = max(partials, PROGRAMS * pads.group * pads.value)
        return cls(
            queries=torch.empty(queries, dtype=dtype, device=device),
            partials=torch.empty(partials, dtype=torch.float32, device=device),
            stats=torch.empty(stats, dtype=torch.float32, device=device),
            counters=torch.zeros(PROGRAMS, dtype=torch.int32, device=device),
        )


def num_splits(num_units: int, longest: int, tile: int) -> int:
    """Into how many parts the rows of each of ``num_units`` tokens and heads are cut at most."""
    if num_units >= SPLIT_UNITS:
        return 1
    wanted = min(MAX_SPLITS, PROGRAMS // num_units, -(-longest // tile))
    return 1 << (max(wanted, 1).bit_length() - 1)  # few different numbers, so few kernels
