"""Products of chosen experts: the matrices of all experts lie one below the other.

Few pairs of token and expert read their expert's rows each; many are sorted by expert on the
device, so that a tile of pairs shares one expert's rows. Nothing waits for the host. Decides how
products are cut; knows nothing of how experts are chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import triton

from qeff.backends.cuda import layout
from qeff.backends.cuda.session.flow import Flow
from qeff.backends.cuda.session.kernels.experts_around import Gate, Stack
from qeff.backends.cuda.session.kernels.experts_packed_pairs import packed_pairs
from qeff.backends.cuda.session.kernels.experts_packed_tiles import packed_tiles
from qeff.backends.cuda.session.kernels.experts_pairs import (
    Chosen,
    PairCut,
    down_pairs,
    up_pairs,
)
from qeff.backends.cuda.session.kernels.experts_sort import Sorted, sort_pairs
from qeff.backends.cuda.session.kernels.experts_sum import sum_pairs
from qeff.backends.cuda.session.kernels.experts_tiles import Cut, tiles
from qeff.backends.cuda.session.linear import Scratch, is_packed
from qeff.backends.cuda.session.stages import State
from qeff.container.program import ABSENT

if TYPE_CHECKING:
    from qeff.backends.cuda.session.building import Store

FEW_PAIRS = 64  # that are not sorted, where most have an expert of their own
LEAST_TILE, MOST_TILE = 16, 128  # pairs of one expert that share a program
WIDE_TILE = 32  # at most in f32, which has no tensor cores
# Of a program of few pairs: bytes of weights that it has on its way, and warps, for rows of up to
# so many columns and for longer ones.
SHORT_ROW = 2048
SHORT_TILE, LONG_TILE = (16384, 4), (65536, 8)
MOST_COLUMNS, MOST_ROWS = 8192, 8
# By pairs of a tile, as measured best on an H200.
DENSE_CUTS = {
    16: Cut(64, 128, 4, 4, is_flipped=True),
    32: Cut(128, 64, 4, 4, is_flipped=True),
    64: Cut(256, 64, 8, 3),
    128: Cut(256, 64, 8, 4),
}
PACKED_CUTS = {16: Cut(64, 0, 4, 3), 32: Cut(64, 0, 4, 3), 64: Cut(128, 0, 8, 2)}


def tile_of(pairs: int, experts: int, kind: torch.dtype, *, packed: bool = False) -> int:
    """Pairs of a tile: room for those of most experts, were they spread evenly."""
    mean = -(-pairs // experts)
    most = WIDE_TILE if kind == torch.float32 else max(PACKED_CUTS) if packed else MOST_TILE
    return min(max(triton.next_power_of_2(2 * mean), LEAST_TILE), most)


def cut_of(stack: Stack, tile: int, kind: torch.dtype) -> Cut:
    """How a product of tiles of pairs is cut, with inputs of this type."""
    cut = (PACKED_CUTS if is_packed(stack.matrix) else DENSE_CUTS)[tile]
    if kind == torch.float32:  # twice the bytes on their way, and in registers
        cut = replace(cut, rows=cut.rows // 2, columns=cut.columns // 2, stages=2)
    rows, columns = (max(16, triton.next_power_of_2(n)) for n in (stack.rows, stack.columns))
    return replace(cut, rows=min(cut.rows, rows), columns=min(cut.columns, columns))


def pair_cut(stack: Stack, summed: int = 1) -> PairCut:
    """How a product of few pairs is cut, of which so many are summed."""
    matrix, columns = stack.matrix, stack.columns
    if is_packed(matrix):
        groups = triton.next_power_of_2(layout.num_groups(matrix.format, columns))
        # Long rows: 56 groups of Mixtral's down take 25.0 µs four at a time, 27.6 eight.
        splits = min(groups, 16) if groups <= 16 else 4
        return PairCut(16, splits, 8 if splits > 8 else 4, 3)
    tile, warps = SHORT_TILE if columns <= SHORT_ROW else LONG_TILE
    size = matrix.codes.element_size()
    width = columns & -columns  # the largest power of two that divides them
    if width < SHORT_ROW:
        width = min(triton.next_power_of_2(columns), MOST_COLUMNS)
    length = columns * summed if columns <= SHORT_ROW else width
    rows = max(tile // (length * size), 2)  # gate and up together
    return PairCut(min(1 << rows.bit_length() - 1, MOST_ROWS), min(width, MOST_COLUMNS), warps)


@dataclass(slots=True)
class Experts:
    """Σ weight · down(activation(up(x))) over a token's experts, and a residual."""

    up: Stack
    down: Stack
    gate: Gate
    reads: tuple[int, ...]  # x, index, weight, and the residual where there is one
    writes: tuple[int, ...]
    slot: int | None = None

    def run(self, state: State) -> None:
        place = state.place
        x, index, weight, *others = (state.values[i] for i in self.reads)
        x = _side_by_side(x.to(place.compute))
        residual = _side_by_side(others[0].to(place.compute)) if others else None
        chosen = Chosen(_side_by_side(index), _side_by_side(weight), residual)
        num_tokens = state.info.num_tokens
        out = place.take(self.slot, num_tokens, (len(x), self.down.rows), place.compute)
        if len(x):
            scratch = place.scratch(num_tokens)
            self.compute(x, chosen, out, scratch, deterministic=place.deterministic)
        state.values[self.writes[0]] = out

    def compute(
        self,
        x: torch.Tensor,
        chosen: Chosen,
        out: torch.Tensor,
        scratch: Scratch,
        *,
        deterministic: bool = False,
    ) -> None:
        """Write the sums of x [tokens, width] into ``out``.

        ``deterministic``: a token's result does not depend on how many others there are.
        """
        pairs = chosen.index.numel()
        hidden = scratch.take("experts hidden", (pairs, self.down.columns), x.dtype)
        if not deterministic and self._takes_few(pairs, x.dtype):
            self._few(x, chosen, hidden, out, scratch)
            return
        tile = LEAST_TILE
        if not deterministic:
            tile = tile_of(pairs, self.up.experts, x.dtype, packed=self._has_packed)
        made = scratch.take("experts made", (pairs, self.down.rows), x.dtype)
        by_expert = sort_pairs(chosen.index, self.up.experts, tile, scratch)
        _multiply(x, self.up, self.gate, hidden, by_expert, is_first=True)
        _multiply(hidden, self.down, Gate(), made, by_expert, is_first=False)
        sum_pairs(made, chosen.weight, out, chosen.residual)

    def bytes_of(self, num_tokens: int, chosen: int, kind: torch.dtype) -> int:
        """Memory that a step of so many tokens works in."""
        return num_tokens * chosen * (self.down.columns + self.down.rows) * kind.itemsize

    @property
    def _has_packed(self) -> bool:
        return is_packed(self.up.matrix) or is_packed(self.down.matrix)

    def _takes_few(self, pairs: int, kind: torch.dtype) -> bool:
        """Whether sorting would gain nothing: hardly an expert would be read twice."""
        is_few = pairs <= min(FEW_PAIRS, self.up.experts)
        return is_few and (kind == torch.bfloat16 or not self._has_packed)

    def _few(
        self,
        x: torch.Tensor,
        chosen: Chosen,
        hidden: torch.Tensor,
        out: torch.Tensor,
        scratch: Scratch,
    ) -> None:
        """Two launches, or three."""
        product = packed_pairs if is_packed(self.up.matrix) else up_pairs
        product(x, self.up, self.gate, chosen.index, hidden, pair_cut(self.up))
        if not is_packed(self.down.matrix):
            down_pairs(hidden, self.down, chosen, out, pair_cut(self.down, chosen.index.shape[1]))
            return
        made = scratch.take("experts made", (len(hidden), self.down.rows), x.dtype)
        packed_pairs(hidden, self.down, Gate(), chosen.index, made, pair_cut(self.down))
        sum_pairs(made, chosen.weight, out, chosen.residual)


def _multiply(
    x: torch.Tensor,
    stack: Stack,
    gate: Gate,
    out: torch.Tensor,
    pairs: Sorted,
    *,
    is_first: bool,
) -> None:
    product = packed_tiles if is_packed(stack.matrix) else tiles
    product(x, stack, gate, out, pairs, cut_of(stack, pairs.tile, x.dtype), is_first=is_first)


def _side_by_side(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def experts_stage(flow: Flow, place: int, store: Store) -> Experts:
    """The stage of a ``moe`` op."""
    inputs = (*flow.inputs[place], ABSENT, ABSENT)[:7]
    biases = [None if i == ABSENT else store.plain(i) for i in inputs[5:7]]
    attrs = flow.attrs(place)
    experts = flow.shape(inputs[3])[0]
    return Experts(
        Stack(store.matrix(inputs[3]), experts, biases[0]),
        Stack(store.matrix(inputs[4]), experts, biases[1]),
        gate_of(attrs),
        inputs[:3],
        flow.program.ops[place].outputs,
    )


def gate_of(attrs: Mapping[str, Any]) -> Gate:
    """The gate that the attributes of a ``moe`` op say."""
    return Gate(attrs["gate"], attrs["activation"], attrs["alpha"], attrs["limit"])
