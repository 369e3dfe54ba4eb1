"""A program as a graph of values: who makes each, who reads it, and which follow from positions.

With ``same_rows`` every token is a requested row, in order, so that ``gather_rows`` gives its
input; a decode step is such a step. Knows nothing of tensors or kernels.
"""

from __future__ import annotations

from collections.abc import Iterator

from qeff.container.program import ABSENT, Op, Program
from qeff.ops import kinds

_ACROSS = ("attention", "reduce_span")  # kinds that look at more than their own token
_PLAIN_WAYS = ("unary", "binary", "cast", "reshape", "softmax", "where", "slice", "concat")


class Flow:
    """Ops by place, with inputs that name each value by the op that really makes it."""

    def __init__(self, program: Program, same_rows: bool) -> None:
        self.program = program
        self.same_rows = same_rows
        self._same: dict[int, int] = {}
        self.inputs: list[tuple[int, ...]] = []
        self.maker: dict[int, int] = {}
        self.users: dict[int, list[int]] = {}
        for place, op in enumerate(program.ops):
            inputs = tuple(self.resolve(i) for i in op.inputs)
            self.inputs.append(inputs)
            if same_rows and op.kind == "gather_rows":
                self._same[op.outputs[0]] = inputs[0]
                continue
            for index in inputs:
                self.users.setdefault(index, []).append(place)
            for index in op.outputs:
                self.maker[index] = place

    def resolve(self, index: int) -> int:
        """The value that this one is the same as."""
        return self._same.get(index, index)

    def made_by(self, index: int) -> Op | None:
        """The op that makes a value; None for inputs and weights."""
        place = self.maker.get(index)
        return None if place is None else self.program.ops[place]

    def attrs(self, place: int) -> dict[str, object]:
        """An op's attributes, defaults filled in."""
        op = self.program.ops[place]
        return kinds()[op.kind].complete(op.attrs)

    def is_weight(self, index: int) -> bool:
        """Whether a value is one of the weights file."""
        return index != ABSENT and self.program.values[index].kind == "weight"

    def shape(self, index: int) -> tuple[int, ...]:
        """The inner shape of a value, or a weight's own."""
        return tuple(self.program.values[index].shape)


def position_values(program: Program) -> set[int]:
    """The values that follow from a token's position alone, weights left out."""
    found = {program.positions}
    for op in program.ops:
        read = [i for i in op.inputs if i != ABSENT and program.values[i].kind != "weight"]
        if op.kind not in _ACROSS and read and found.issuperset(read):
            found.update(op.outputs)
    return found


def wide_products(program: Program) -> set[int]:
    """Places of products whose results stay in float32: the logits', and those that choose."""
    makers = {index: place for place, op in enumerate(program.ops) for index in op.outputs}
    starts = [makers[program.logits]] if program.logits in makers else []
    starts += [place for place, op in enumerate(program.ops) if op.kind == "topk"]
    return {
        place for place in _before(program, makers, starts) if program.ops[place].kind == "linear"
    }


def _before(program: Program, makers: dict[int, int], pending: list[int]) -> Iterator[int]:
    """The ops that others depend on by ways that keep precision, up to the nearest products."""
    seen: set[int] = set()
    while pending:
        place = pending.pop()
        if place in seen:
            continue
        seen.add(place)
        op = program.ops[place]
        yield place
        if op.kind in (*_PLAIN_WAYS, "topk"):
            pending.extend(makers[i] for i in op.inputs if i in makers)
