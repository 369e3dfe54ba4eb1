"""From a program to stages: what is fused is found in the flow of values, never by names.

Products of one input become one, with the norm before them and the sum behind them; rotations and
norms of heads go into their attention; what follows from positions is looked up. Everything else
is one op, one stage. What nothing reads is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

import torch

from qeff.backends.cuda.session.experts import experts_stage
from qeff.backends.cuda.session.flow import Flow, position_values, wide_products
from qeff.backends.cuda.session.generic import COMPUTE
from qeff.backends.cuda.session.generic_moves import MOVES, embed
from qeff.backends.cuda.session.heads import attention_stage
from qeff.backends.cuda.session.linear import is_packed
from qeff.backends.cuda.session.matrix import Matrix, Norm
from qeff.backends.cuda.session.merging import Group, bias_of
from qeff.backends.cuda.session.routing import find_route
from qeff.backends.cuda.session.stages import Attend, Embed, Generic, Lookup, Product, Stage
from qeff.container.program import ABSENT, Program
from qeff.core.errors import ContainerError
from qeff.ops.base import MATRICES


class Store(Protocol):
    """Weights on the device, by the program's values."""

    def matrix(self, value: int, num_rows: int | None = None) -> Matrix:
        """A matrix; with ``num_rows`` so many rows from its first on, those below it included."""

    def plain(self, value: int) -> torch.Tensor:
        """An array that is no matrix."""

    def bias(self, values: Sequence[int | None], sizes: Sequence[int]) -> torch.Tensor | None:
        """Biases one after the other, zeros for those that are not there."""

    def table(self, value: int) -> torch.Tensor:
        """What a value that follows from positions is at each of them."""


class Builder:
    """The stages of one program for one kind of step."""

    def __init__(self, flow: Flow, groups: Sequence[Group], store: Store) -> None:
        self.flow, self.store = flow, store
        self.program: Program = flow.program
        self.fixed = position_values(self.program)
        self._wide = wide_products(self.program)
        self._taken: set[int] = set()  # places whose op is inside another stage
        self._at: dict[int, list[Stage]] = {}  # stages by the place that they stand at
        for group in groups:
            self._place_group(group)
        for place, op in enumerate(self.program.ops):
            if op.kind == "moe":
                self._place_experts(place)

    def build(self) -> list[Stage]:
        """All stages in order."""
        stages: list[Stage] = []
        for place, op in enumerate(self.program.ops):
            stages += self._at.get(place, ())
            is_same = self.flow.same_rows and op.kind == "gather_rows"
            if place in self._taken or is_same or op.outputs[0] in self.fixed:
                continue
            stages.append(self._stage(place))
        stages = _needed(stages, self.flow.resolve(self.program.logits))
        _pair(stages)
        return list(self._with_tables(stages))

    def _stage(self, place: int) -> Stage:
        op = self.program.ops[place]
        if op.kind == "attention":
            return attention_stage(self.flow, place, self.fixed, self.store)
        if op.kind == "embed":
            return self._embed(place)
        function = COMPUTE.get(op.kind) or MOVES.get(op.kind)
        if function is None:
            raise ContainerError(
                f"program op {op.name!r} is a {op.kind}, which the target cuda cannot run",
                "compile for the target cpu",
            )
        inputs: list[int | torch.Tensor | None] = []
        for index in self.flow.inputs[place]:
            if index == ABSENT:
                inputs.append(None)
            else:
                inputs.append(self.store.plain(index) if self.flow.is_weight(index) else index)
        reads = tuple(item for item in inputs if isinstance(item, int))
        return Generic(function, self.flow.attrs(place), inputs, reads, op.outputs)

    def _embed(self, place: int) -> Stage:
        op, (table, index) = self.program.ops[place], self.flow.inputs[place]
        attrs: Mapping[str, Any] = self.flow.attrs(place)
        if self.program.values[table].dtype not in MATRICES:
            inputs: list[int | torch.Tensor | None] = [self.store.plain(table), index]
            return Generic(embed, attrs, inputs, (index,), op.outputs)
        is_of_tokens = index == self.program.tokens
        matrix, inner = self.store.matrix(table), self.flow.shape(table)[1:]
        return Embed(matrix, inner, attrs["offset"], is_of_tokens, (index,), op.outputs)

    def _place_group(self, group: Group) -> None:
        """One stage for the products of a group that run on the same value, in order of rows."""
        parts: list[list[int]] = []
        for place in group.places:
            x = self.flow.inputs[place][0]
            if parts and self.flow.inputs[parts[-1][0]][0] == x:
                parts[-1].append(place)
            else:
                parts.append([place])
        gated = group.gated if len(parts) == 1 else None
        for part in parts:
            self._place_product(part, gated)
        self._taken.update(group.places)
        if gated is not None:
            self._taken.add(gated)

    def _place_product(self, places: Sequence[int], gated: int | None) -> None:
        ops, flow = self.program.ops, self.flow
        weights = [flow.inputs[place][1] for place in places]
        sizes = [flow.shape(weight)[0] for weight in weights]
        biases = [bias_of(flow, place) for place in places]
        writes = tuple(ops[place].outputs[0] for place in places)
        columns: tuple[int, ...] = tuple(sizes)
        anchor, activation = places[0], None
        reads: tuple[int, ...] = (flow.inputs[places[0]][0],)
        if gated is not None:
            activation = str(flow.attrs(gated)["activation"])
            writes, columns = ops[gated].outputs, (sizes[0],)
        elif len(places) == 1 and (found := self._residual(writes[0])) is not None:
            anchor, other = found
            writes, reads = ops[anchor].outputs, (*reads, other)
            self._taken.add(anchor)
        norm = self._norm_before(places)
        if norm is not None:
            reads = (norm[0], *reads[1:])
        stage = Product(
            self.store.matrix(weights[0], sum(sizes)),
            reads,
            writes,
            columns,
            norm=None if norm is None else norm[1],
            bias=self.store.bias(biases, sizes),
            activation=activation,
            is_wide=places[0] in self._wide,
        )
        self._at.setdefault(anchor, []).append(stage)

    def _place_experts(self, place: int) -> None:
        """A stage for chosen experts with what they are added to, and one for their choice."""
        if (way := find_route(self.flow, place)) is not None and not way[1] & self._taken:
            self._taken |= way[1]
            self._at.setdefault(way[0], []).append(way[2])
        stage, anchor = experts_stage(self.flow, place, self.store), place
        self._taken.add(place)
        if (found := self._residual(stage.writes[0])) is not None:
            anchor, other = found
            stage.writes, stage.reads = self.program.ops[anchor].outputs, (*stage.reads, other)
            self._taken.add(anchor)
        self._at.setdefault(anchor, []).append(stage)

    def _residual(self, product: int) -> tuple[int, int] | None:
        """The sum that a product goes into and nothing else, and what it is added to."""
        users = self.flow.users.get(product, [])
        if len(users) != 1 or product == self.program.logits:
            return None
        place = users[0]
        op, inputs = self.program.ops[place], self.flow.inputs[place]
        if op.kind != "binary" or op.attrs["function"] != "add" or place in self._taken:
            return None
        other = inputs[0] if inputs[1] == product else inputs[1]
        is_fit = (
            other != product
            and not self.flow.is_weight(other)
            and other not in self.fixed
            and self.flow.shape(other) == self.flow.shape(product)
            and self.flow.maker[product] not in self._wide
        )
        return (place, other) if is_fit else None

    def _norm_before(self, places: Sequence[int]) -> tuple[int, Norm] | None:
        """The input of a norm that products alone read, these and others, and the norm."""
        flow, x = self.flow, self.flow.inputs[places[0]][0]
        place = flow.maker.get(x)
        if place is None or self.program.ops[place].kind != "norm":
            return None
        inputs, attrs = flow.inputs[place], flow.attrs(place)
        has_bias = len(inputs) > 2 and inputs[2] != ABSENT
        has_gain = len(inputs) > 1 and inputs[1] != ABSENT
        if attrs["function"] != "rms" or has_bias or not has_gain:
            return None
        if any(self.program.ops[user].kind != "linear" for user in flow.users[x]):
            return None
        eps = attrs["eps"]
        assert isinstance(eps, float), "the rule of a norm was checked"
        return inputs[0], Norm(self.store.plain(inputs[1]), eps)

    def _with_tables(self, stages: Sequence[Stage]) -> Iterator[Stage]:
        """The stages, and before each the look-ups of what it reads that follows from positions."""
        done = {self.program.positions}
        for stage in stages:
            for index in stage.reads:
                if index in self.fixed and index not in done:
                    done.add(index)
                    is_row = self.program.values[index].kind == "row" and not self.flow.same_rows
                    yield Lookup(self.store.table(index), is_row, (index,))
            yield stage


def _needed(stages: Sequence[Stage], logits: int) -> list[Stage]:
    """The stages that something reads; attention writes caches and always stays."""
    needed, kept = {logits}, []
    for stage in reversed(stages):
        if isinstance(stage, Attend) or needed.intersection(stage.writes):
            needed.update(stage.reads)
            kept.append(stage)
    return kept[::-1]


def _pair(stages: Sequence[Stage]) -> None:
    """Tell products of one input that stand side by side, and whose kernels can, to overlap."""
    for one, other in pairwise(stages):
        if not (isinstance(one, Product) and isinstance(other, Product)):
            continue
        is_plain = one.is_wide or other.is_wide or len(one.reads) > 1
        are_packed = is_packed(one.matrix) and is_packed(other.matrix)
        if one.reads == other.reads and are_packed and not is_plain:
            one.leads, other.joins = not one.joins, True
