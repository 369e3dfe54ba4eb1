"""The weights of a planned program as an engine with packed matrices stores them.

A weight is a *matrix* where a product or a look-up reads it, and a plain array elsewhere; one that
is read in several ways gets an entry for each. Matrices that lie transposed are turned. Says what
each matrix is for, which decides its precision, but knows no precision.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from qeff.container.program import ABSENT, Op, Program, Value
from qeff.ops.base import FLOATS, MATRICES

SMALL = 1024  # a matrix with fewer values gains nothing from fewer bits
_MATRIX_INPUTS = {"linear": (1,), "moe": (3, 4), "embed": (0,)}


@dataclass(slots=True)
class Stored:
    """One entry of the weights file."""

    source: str  # the planned weight that it is made of
    name: str
    shape: tuple[int, ...]  # with rows before columns
    dtype: str  # of the planned weight
    is_matrix: bool
    is_transposed: bool  # against the planned weight
    is_stack: bool  # one matrix for each expert
    # linear, value, head, experts, embedding, other
    roles: set[str] = field(default_factory=set)
    uses: list[tuple[int, int]] = field(default_factory=list)  # places of op and input

    @property
    def matrix_shape(self) -> tuple[int, ...]:
        """The shape as panels see it: a table may have any number of axes."""
        if self.is_stack:
            return self.shape
        return self.shape[0], math.prod(self.shape[1:])


def split_weights(program: Program) -> list[Stored]:
    """Every entry, in the order of first use."""
    head, routers, by_token = _head(program), _routers(program), _made_of_tokens(program)
    special = dict.fromkeys(_shared_values(program), "value")
    if head is not None:
        special[head] = "head"
    found: dict[tuple[int, bool, bool], Stored] = {}
    taken: set[str] = set()
    for place, op, slot, value in _weight_inputs(program):
        is_matrix = slot in _MATRIX_INPUTS.get(op.kind, ()) and value.dtype in FLOATS
        is_transposed = is_matrix and bool(op.attrs.get("transposed", False))
        key = (op.inputs[slot], is_matrix, is_transposed)
        if key not in found:
            name = _free_name(value.name, is_matrix, is_transposed, taken)
            shape = (*value.shape[:-2], *value.shape[:-3:-1]) if is_transposed else value.shape
            is_stack = is_matrix and op.kind == "moe"
            found[key] = Stored(
                value.name, name, shape, value.dtype, is_matrix, is_transposed, is_stack
            )
        entry = found[key]
        entry.uses.append((place, slot))
        if is_matrix:
            is_special = place in routers or (op.kind == "embed" and op.inputs[1] not in by_token)
            is_other = is_special or value.size < SMALL
            entry.roles.add("other" if is_other else _role(op, special.get(place)))
        else:
            entry.roles.add("other")
    return list(found.values())


def rewrite(program: Program, entries: list[Stored], dtypes: Mapping[str, str]) -> Program:
    """The program that reads these entries, each in the dtype given by its name."""
    values = list(program.values)
    index_of = {v.name: i for i, v in enumerate(values) if v.kind == "weight"}
    inputs = [list(op.inputs) for op in program.ops]
    replaced: set[str] = set()
    for entry in entries:
        value = Value(entry.name, "weight", entry.shape, dtypes[entry.name])
        if entry.source in replaced:
            values.append(value)
            index = len(values) - 1
        else:
            replaced.add(entry.source)
            index = index_of[entry.source]
            values[index] = value
        for place, slot in entry.uses:
            inputs[place][slot] = index
    ops = [
        replace(op, inputs=tuple(numbers), attrs=_upright(op))
        for op, numbers in zip(program.ops, inputs, strict=True)
    ]
    return replace(program, values=tuple(values), ops=tuple(ops))


def matrix_values(program: Program) -> dict[int, bool]:
    """The values that are stored as panels, and whether each is a stack of matrices."""
    return {
        op.inputs[slot]: op.kind == "moe"
        for _, op, slot, value in _weight_inputs(program)
        if slot in _MATRIX_INPUTS.get(op.kind, ()) and value.dtype in MATRICES
    }


def _upright(op: Op) -> dict[str, Any]:
    attrs = dict(op.attrs)
    return attrs | {"transposed": False} if "transposed" in attrs else attrs


def _role(op: Op, special: str | None) -> str:
    if op.kind == "linear":
        return special or "linear"
    return "experts" if op.kind == "moe" else "embedding"


def _free_name(name: str, is_matrix: bool, is_transposed: bool, taken: set[str]) -> str:
    """The weight's own name for its first entry, the name with the way it is read for others."""
    if name in taken:
        name = f"{name}/{'transposed' if is_transposed else 'matrix' if is_matrix else 'plain'}"
    assert name not in taken, f"two entries {name}"
    taken.add(name)
    return name


@dataclass(frozen=True, slots=True)
class _Weight:
    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def _weight_inputs(program: Program) -> Iterator[tuple[int, Op, int, _Weight]]:
    for place, op in enumerate(program.ops):
        for slot, index in enumerate(op.inputs):
            value = program.values[index] if index != ABSENT else None
            if value is not None and value.kind == "weight":
                yield place, op, slot, _Weight(value.name, tuple(value.shape), value.dtype)


def _makers(program: Program) -> dict[int, int]:
    return {index: place for place, op in enumerate(program.ops) for index in op.outputs}


def _head(program: Program) -> int | None:
    """The place of the product that makes the logits."""
    makers = _makers(program)
    place = makers.get(program.logits)
    while place is not None and program.ops[place].kind != "linear":
        op = program.ops[place]
        place = next((makers[i] for i in op.inputs if i in makers), None)
    return place


def _routers(program: Program) -> set[int]:
    """The products that choose experts: a small error there changes which ones run."""
    return _products_before(
        program, [place for place, op in enumerate(program.ops) if op.kind == "topk"]
    )


def _shared_values(program: Program) -> set[int]:
    """The products that make attention's values and nothing else, where query heads share them.

    They are small, and an error in one is in the output of several heads.
    """
    makers = _makers(program)
    found: set[int] = set()
    others: set[int] = set()
    for op in program.ops:
        if op.kind != "attention" or ABSENT in op.inputs[:3]:
            continue
        query, _, value = (math.prod(program.values[i].shape) for i in op.inputs[:3])
        starts = [[makers[i]] if i in makers else [] for i in op.inputs[:3]]
        made = _products_before(program, starts[2])
        if 2 * value <= query and len(made) == 1:
            found |= made
        others |= _products_before(program, starts[0] + starts[1])
    return found - others


def _products_before(program: Program, pending: list[int]) -> set[int]:
    """The nearest products that ops at these places depend on, themselves among them."""
    makers = _makers(program)
    pending = list(pending)
    seen: set[int] = set()
    found: set[int] = set()
    while pending:
        place = pending.pop()
        if place in seen:
            continue
        seen.add(place)
        op = program.ops[place]
        if op.kind == "linear":
            found.add(place)
        elif op.kind not in ("moe", "attention", "norm", "embed"):
            pending.extend(makers[i] for i in op.inputs if i in makers)
    return found


def _made_of_tokens(program: Program) -> set[int]:
    """The values that follow from token ids and not from positions."""
    found = {program.tokens}
    for op in program.ops:
        read = {i for i in op.inputs if i != ABSENT and program.values[i].kind != "weight"}
        if read and read <= found:
            found.update(op.outputs)
    return found
