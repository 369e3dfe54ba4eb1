"""Pairs of token and expert, sorted by expert, and a table of tiles of pairs of one expert.

A counting sort that keeps the order of each expert's pairs. Shapes follow from the number of pairs
alone, so that nothing waits for the host: the table has as many entries as there may be tiles, and
those that are not needed say so. Knows nothing of products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from qeff.backends.cuda.session.kernels.experts_around import chosen_expert
from qeff.backends.cuda.session.kernels.scores import bound
from qeff.backends.cuda.session.launch import release, settings, wait

if TYPE_CHECKING:
    from qeff.backends.cuda.session.linear import Scratch

CHUNK = 256  # pairs of one program
# Of them at a time, by experts, and warps: what takes time is the number of rounds.
MOST_PART, MANY_EXPERTS, WARPS = 128, 128, 16
COUNTED = 16  # chunks whose counts are read at once
ENTRY = 4  # numbers of an entry: expert or −1, first place, number of places, nothing


@dataclass(frozen=True, slots=True)
class Sorted:
    """Pairs by expert."""

    order: torch.Tensor  # i32 [pairs]
    table: torch.Tensor  # i32 [tiles, ENTRY]
    tile: int  # pairs of a tile, at most
    chosen: int  # pairs of a token


def most_tiles(pairs: int, experts: int, tile: int) -> int:
    """As many tiles as there may be."""
    return (pairs + min(pairs, experts) * (tile - 1)) // tile


@triton.jit
def _some(index, place, pairs, chosen, stride, experts):
    """The experts of pairs, −1 behind the last."""
    held = tl.minimum(place, pairs - 1)
    own = chosen_expert(index, held, chosen, stride, experts).to(tl.int32)
    return tl.where(place < pairs, own, -1)


@triton.jit
def _histogram(
    index, start, pairs, chosen, stride, experts,
    CHUNK: tl.constexpr, PART: tl.constexpr, EXPERTS: tl.constexpr,
):  # fmt: skip
    """How many pairs of a chunk each expert has."""
    expert = tl.arange(0, EXPERTS)
    counts = tl.zeros([EXPERTS], tl.int32)
    for part in range(0, bound(tl.minimum(pairs - start, CHUNK)), PART):
        own = _some(index, start + part + tl.arange(0, PART), pairs, chosen, stride, experts)
        counts += tl.sum((own[:, None] == expert[None, :]).to(tl.int32), 0)
    return counts


@triton.jit(do_not_specialize=["pairs"])
def _count(
    index, counts, pairs, chosen, stride, experts,
    CHUNK: tl.constexpr, PART: tl.constexpr, EXPERTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    release(PDL)
    chunk = tl.program_id(0)
    wait(PDL)
    own = _histogram(index, chunk * CHUNK, pairs, chosen, stride, experts, CHUNK, PART, EXPERTS)
    tl.store(counts + chunk * EXPERTS + tl.arange(0, EXPERTS), own)


@triton.jit
def _write_table(
    table, tiles, total, end, TILE: tl.constexpr, PART: tl.constexpr, EXPERTS: tl.constexpr
):
    """Entries of the table; the programs share them."""
    expert = tl.arange(0, EXPERTS)
    needed = (total + TILE - 1) // TILE
    tile_end = tl.cumsum(needed, 0)
    first_place = end - total - (tile_end - needed) * TILE  # of tile 0, were it the expert's
    first_tile = tl.program_id(0) * PART
    for begin in range(bound(first_tile), bound(tiles), bound(tl.num_programs(0) * PART)):
        tile = begin + tl.arange(0, PART)
        own = tl.sum((tile_end[None, :] <= tile[:, None]).to(tl.int32), 1)
        is_own = expert[None, :] == own[:, None]
        first = tl.sum(tl.where(is_own, first_place[None, :], 0), 1) + tile * TILE
        left = tl.sum(tl.where(is_own, end[None, :], 0), 1) - first
        inside = tile < tiles
        entry = table + tile * 4
        tl.store(entry, tl.where(own < EXPERTS, own, -1), mask=inside)
        tl.store(entry + 1, first, mask=inside)
        tl.store(entry + 2, tl.minimum(left, TILE), mask=inside)


@triton.jit(do_not_specialize=["pairs", "chunks", "tiles"])
def _place(
    index, counts, order, table, pairs, chosen, stride, experts, chunks, tiles,
    TILE: tl.constexpr, CHUNK: tl.constexpr, PART: tl.constexpr, COUNTED: tl.constexpr,
    EXPERTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    release(PDL)
    program = tl.program_id(0)
    start = program * CHUNK
    expert = tl.arange(0, EXPERTS)
    wait(PDL)
    before = tl.zeros([EXPERTS], tl.int32)
    if counts is None:
        total = _histogram(index, 0, pairs, chosen, stride, experts, CHUNK, PART, EXPERTS)
    else:
        total = tl.zeros([EXPERTS], tl.int32)
        for begin in range(0, bound(chunks), COUNTED):
            chunk = begin + tl.arange(0, COUNTED)
            place = counts + chunk[:, None] * EXPERTS + expert[None, :]
            some = tl.load(place, mask=(chunk < chunks)[:, None], other=0)
            total += tl.sum(some, 0)
            before += tl.sum(tl.where((chunk < program)[:, None], some, 0), 0)
    end = tl.cumsum(total, 0)
    _write_table(table, tiles, total, end, TILE, PART, EXPERTS)
    following = end - total + before  # where each expert's next pair goes
    i = tl.arange(0, PART)
    for part in range(0, bound(tl.minimum(pairs - start, CHUNK)), PART):
        pair = start + part + i
        own = _some(index, pair, pairs, chosen, stride, experts)
        is_own = own[:, None] == expert[None, :]
        first = tl.sum(tl.where(is_own, following[None, :], 0), 1)
        is_earlier = (own[:, None] == own[None, :]) & (i[None, :] < i[:, None])
        rank = tl.sum(is_earlier.to(tl.int32), 1)
        tl.store(order + first + rank, pair, mask=pair < pairs)
        following += tl.sum(is_own.to(tl.int32), 0)


def sort_pairs(index: torch.Tensor, experts: int, tile: int, scratch: Scratch) -> Sorted:
    """Sort the pairs of experts ``index`` [tokens, chosen]; memory is the scratch's."""
    tokens, chosen = index.shape
    pairs = tokens * chosen
    assert pairs and index.stride(1) == 1, "some pairs, those of a token side by side"
    tiles = most_tiles(pairs, experts, tile)
    order = scratch.take("experts order", (pairs,), torch.int32)
    table = scratch.take("experts table", (tiles, ENTRY), torch.int32)
    room = triton.next_power_of_2(experts)
    part = max(MOST_PART // max(room // MANY_EXPERTS, 1), 16)
    chunks = triton.cdiv(pairs, CHUNK)
    operands = (pairs, chosen, index.stride(0), experts)
    cut = {"CHUNK": CHUNK, "PART": part, "EXPERTS": room, "num_warps": WARPS}
    cut |= settings(index.device)
    counts = None
    if chunks > 1:
        counts = scratch.take("experts counts", (chunks, room), torch.int32)
        _count[(chunks,)](index, counts, *operands, **cut)
    _place[(chunks,)](
        index, counts, order, table, *operands, chunks, tiles, TILE=tile, COUNTED=COUNTED, **cut
    )
    return Sorted(order, table, tile, chosen)
