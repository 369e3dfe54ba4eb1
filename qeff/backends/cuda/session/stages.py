"""What a step consists of: stages that read values and write values, each a launch or a few.

A stage holds its weights and is run with the values of a step. Which ops became which stage is
decided in ``building``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from qeff.backends.cuda.session.attention import AttentionSpec, Work, attend
from qeff.backends.cuda.session.cache import LayerCache
from qeff.backends.cuda.session.generic import Call
from qeff.backends.cuda.session.linear import Scratch, linear
from qeff.backends.cuda.session.matrix import Matrix, Norm
from qeff.backends.cuda.session.step_info import StepInfo
from qeff.backends.cuda.session.table import look_up

Tensor = torch.Tensor
LOGITS = -1  # the slot of the last product
SMALL_STEP = 512  # tokens of the largest decode that is captured


class Keeping(Scratch):
    """Scratch that holds on to buffers it has outgrown: captured graphs use them."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._outgrown: list[Tensor] = []

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """As any scratch."""
        before = self._buffers.get(name)
        taken = super().take(name, shape, dtype)
        if before is not None and self._buffers[name] is not before:
            self._outgrown.append(before)
        return taken


class Moving(Scratch):
    """Scratch of large steps: it tells when a buffer is given up, so that graphs are too."""

    def __init__(self, place: Workplace) -> None:
        super().__init__(place.device)
        self._place = place

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """As any scratch."""
        before = self._buffers.get(name)
        taken = super().take(name, shape, dtype)
        self._place.moves += before is not None and self._buffers[name] is not before
        return taken


@dataclass(slots=True)
class Workplace:
    """What all stages share: number types, settings, caches, and memory that is used again."""

    compute: torch.dtype
    device: torch.device
    deterministic: bool = False
    caches: list[LayerCache] = field(default_factory=list)
    specs: list[AttentionSpec] = field(default_factory=list)
    most_rows: int = 0  # whose logits have memory of their own
    moves: int = 0  # how often memory of large steps was given up for more
    _works: dict[bool, tuple[int, Work]] = field(default_factory=dict)
    _scratches: dict[bool, Scratch] = field(default_factory=dict)

    def scratch(self, num_tokens: int) -> Scratch:
        """Room for the products of a step; what small steps had stays, for graphs."""
        is_small = num_tokens <= SMALL_STEP
        scratch = self._scratches.get(is_small)
        if scratch is None:
            scratch = Keeping(self.device) if is_small else Moving(self)
            self._scratches[is_small] = scratch
        return scratch

    def take(
        self, slot: int | None, num_tokens: int, shape: tuple[int, ...], kind: torch.dtype
    ) -> Tensor:
        """Memory for a value: that of its slot, or its own."""
        if slot is None or (slot == LOGITS and shape[0] > self.most_rows):
            return torch.empty(shape, dtype=kind, device=self.device)
        scratch = self.scratch(num_tokens)
        if slot == LOGITS:  # as many as there may be, so that it stays where it is
            return scratch.take("logits", (self.most_rows, *shape[1:]), kind)[: shape[0]]
        return scratch.take(f"value {slot}", shape, kind)

    def work(self, num_tokens: int) -> Work:
        """Room for the attention of a step; that of small ones stays where it is, for graphs."""
        is_small = num_tokens <= SMALL_STEP
        room, work = self._works.get(is_small, (0, None))
        if work is None or num_tokens > room:
            room = max(num_tokens, SMALL_STEP)
            self.moves += work is not None
            work = Work.make(self.specs, room, self.compute, self.device)
            self._works[is_small] = room, work
        return work


@dataclass(slots=True)
class State:
    """The values of one step, and what is known of it."""

    values: dict[int, Tensor]
    info: StepInfo
    place: Workplace
    chosen: Tensor | None = None  # tokens of the step before, that this one's may stand for


class Stage(Protocol):
    """Reads and writes are numbers of the program's values."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]

    def run(self, state: State) -> None: ...


@dataclass(slots=True)
class Lookup:
    """A value that follows from positions alone, read from a table of all positions."""

    table: Tensor  # [ctx, …]
    is_row: bool
    writes: tuple[int, ...]
    reads: tuple[int, ...] = ()

    def run(self, state: State) -> None:
        positions = state.info.positions[: state.info.num_tokens]
        if self.is_row:
            positions = positions.index_select(0, state.info.rows[: state.info.num_rows])
        state.values[self.writes[0]] = self.table.index_select(0, positions)


@dataclass(slots=True)
class Embed:
    """Rows of a matrix by token, or by another value."""

    table: Matrix
    inner: tuple[int, ...]  # the shape of one row
    offset: int
    is_of_tokens: bool
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    slot: int | None = None

    def run(self, state: State) -> None:
        index, place = state.values[self.reads[0]], state.place
        chosen = state.chosen if self.is_of_tokens else None
        flat = index.reshape(-1)
        out = place.take(
            self.slot, state.info.num_tokens, (len(flat), self.table.shape[1]), place.compute
        )
        look_up(self.table, flat, self.offset, out, chosen)
        is_flat = index.dim() == 1 and len(self.inner) == 1
        state.values[self.writes[0]] = out if is_flat else out.reshape(*index.shape, *self.inner)


@dataclass(slots=True)
class Product:
    """A product with a matrix, and what stands directly before and behind it."""

    matrix: Matrix
    reads: tuple[int, ...]  # x, and the residual where there is one
    writes: tuple[int, ...]
    columns: tuple[int, ...]  # of each value written
    norm: Norm | None = None
    bias: Tensor | None = None
    activation: str | None = None
    is_wide: bool = False
    is_in_place: bool = False  # nobody reads the residual again: the sum goes where it is
    slot: int | None = None
    leads: bool = False  # see ``linear``
    joins: bool = False

    def run(self, state: State) -> None:
        place, x = state.place, state.values[self.reads[0]]
        flat = _flat(x, place.compute)
        residual = None
        if len(self.reads) > 1:
            residual = _flat(state.values[self.reads[1]], place.compute)
        out = self._out(state, len(flat), residual)
        linear(
            flat,
            self.matrix,
            out,
            norm=self.norm,
            bias=self.bias,
            residual=residual,
            activation=self.activation,
            leads=self.leads,
            joins=self.joins,
            scratch=place.scratch(state.info.num_tokens),
            deterministic=place.deterministic,
        )
        lead = x.shape[:-1] if x.dim() != 2 else None
        if len(self.writes) == 1:
            state.values[self.writes[0]] = out if lead is None else out.unflatten(0, lead)
            return
        for index, part in zip(self.writes, out.split(self.columns, 1), strict=True):
            state.values[index] = part if lead is None else part.unflatten(0, lead)

    def _out(self, state: State, count: int, residual: Tensor | None) -> Tensor:
        place = state.place
        # A residual that had to be copied or turned is memory of nobody's.
        if self.is_in_place and residual is state.values[self.reads[1]] and residual is not None:
            return residual
        kind = torch.float32 if self.is_wide else place.compute
        return place.take(self.slot, state.info.num_tokens, (count, sum(self.columns)), kind)


def _flat(x: Tensor, kind: torch.dtype) -> Tensor:
    """Rows in the compute type, one behind the other; the tensor itself where it is that."""
    if x.dim() != 2:
        x = x.reshape(-1, x.shape[-1])
    if x.dtype != kind:
        x = x.to(kind)
    return x if x.is_contiguous() else x.contiguous()


@dataclass(slots=True)
class Heads:
    """Where queries, keys or values lie: a value, and columns of it."""

    value: int
    start: int
    heads: int
    dim: int

    def of(self, state: State) -> Tensor:
        """[tokens, heads, dim], as it lies."""
        x = state.values[self.value]
        if x.dim() != 2:
            x = x.flatten(1)
        size = self.heads * self.dim
        if x.shape[1] != size:
            x = x.narrow(1, self.start, size)
        return x.unflatten(1, (self.heads, self.dim))


@dataclass(slots=True)
class Attend:
    """Rotate, write keys and values, attend."""

    spec: AttentionSpec
    cache: int
    query: Heads
    key: Heads | None
    value: Heads | None
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    slot: int | None = None

    def run(self, state: State) -> None:
        place, spec = state.place, self.spec
        q = _side_by_side(self.query.of(state), place.compute)
        k = v = None
        if self.key is not None and self.value is not None:
            k = _side_by_side(self.key.of(state), place.compute)
            v = _side_by_side(self.value.of(state), place.compute)
        out = place.take(
            self.slot, state.info.num_tokens, (len(q), spec.num_heads, spec.value_dim), q.dtype
        )
        attend(
            spec,
            (q, k, v),
            place.caches[self.cache],
            state.info,
            out,
            place.work(state.info.num_tokens),
            deterministic=place.deterministic,
        )
        state.values[self.writes[0]] = out


def _side_by_side(x: Tensor, kind: torch.dtype) -> Tensor:
    """In the compute type, the dims of a head neighbours."""
    x = x.to(kind)
    return x if x.stride(-1) == 1 else x.contiguous()


@dataclass(slots=True)
class Generic:
    """One op as torch calls."""

    function: Callable[[Call], list[Tensor]]
    attrs: Mapping[str, Any]
    inputs: Sequence[int | Tensor | None]  # a value, a weight, or nothing
    reads: tuple[int, ...]
    writes: tuple[int, ...]

    def run(self, state: State) -> None:
        inputs = [state.values[item] if isinstance(item, int) else item for item in self.inputs]
        floats = {
            x.dtype
            for x, item in zip(inputs, self.inputs, strict=True)
            if isinstance(item, int) and x is not None and x.is_floating_point()
        }
        like = torch.float32 if torch.float32 in floats else next(iter(floats), torch.float32)
        made = self.function(Call(inputs, self.attrs, like, state.info))
        for index, tensor in zip(self.writes, made, strict=True):
            state.values[index] = tensor
