"""A program while it is being written: values and ops in lists, weights by name.

Ops that compute the same from the same are written once. Knows nothing of the graph that the ops
come from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx_ir as ir

from qeff.compile.plan.constants import shape_of
from qeff.container.program import ABSENT, Op, Program, Value
from qeff.core.spec import CacheLayer
from qeff.ops import Arg, kinds


@dataclass(slots=True)
class Draft:
    """Values and ops that may still change; ``finish`` makes the program of what is used."""

    values: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    tensors: dict[str, ir.TensorProtocol] = field(default_factory=dict)
    caches: list[CacheLayer] = field(default_factory=list)
    tokens: int = ABSENT
    positions: int = ABSENT
    logits: int = ABSENT
    _made: dict[Any, list[int]] = field(default_factory=dict)
    _weights: dict[str, int] = field(default_factory=dict)

    def add_value(self, value: Value) -> int:
        """Append a value and return its index."""
        self.values.append(value)
        return len(self.values) - 1

    def add_weight(self, name: str, tensor: ir.TensorProtocol, dtype: str) -> int:
        """The value of a weight, made at its first use."""
        if name not in self._weights:
            self._weights[name] = self.add_value(Value(name, "weight", shape_of(tensor), dtype))
            self.tensors[name] = tensor
        return self._weights[name]

    def arg(self, index: int) -> Arg | None:
        """What an op's rule knows of a value."""
        if index == ABSENT:
            return None
        value = self.values[index]
        return Arg(value.kind, value.shape, value.dtype)

    def add_op(
        self, kind: str, name: str, inputs: Sequence[int], attrs: Mapping[str, Any] | None = None
    ) -> list[int]:
        """Append an op and return its outputs. Raises RuleError when it breaks its kind's rules."""
        rules = kinds()[kind]
        full = rules.complete(attrs or {})
        key = (kind, tuple(inputs), tuple(full.items()))
        if kind != "attention" and key in self._made:
            return self._made[key]
        args = rules.outputs([self.arg(i) for i in inputs], full)
        outputs = [
            self.add_value(Value(f"{name}:{i}", arg.kind, arg.shape, arg.dtype))
            for i, arg in enumerate(args)
        ]
        self.ops.append(Op(kind, name, tuple(inputs), tuple(outputs), full))
        self._made[key] = outputs
        return outputs

    def replace_uses(self, old: int, new: int) -> None:
        """Let every op that reads one value read another."""
        for place, op in enumerate(self.ops):
            if old in op.inputs:
                inputs = tuple(new if index == old else index for index in op.inputs)
                self.ops[place] = replace(op, inputs=inputs)
        self.logits = new if self.logits == old else self.logits

    def uses(self) -> dict[int, list[int]]:
        """For each value, the ops that read it, by their place."""
        found: dict[int, list[int]] = {}
        for place, op in enumerate(self.ops):
            for index in op.inputs:
                if index != ABSENT:
                    found.setdefault(index, []).append(place)
        found.setdefault(self.logits, []).append(len(self.ops))
        return found

    def makers(self) -> dict[int, int]:
        """For each value that an op makes, that op's place."""
        return {index: place for place, op in enumerate(self.ops) for index in op.outputs}

    def finish(self) -> Program:
        """Drop what nothing uses, number the values anew, and check."""
        needed = {self.logits, self.tokens, self.positions}
        kept: list[Op] = []
        for op in reversed(self.ops):
            if op.kind == "attention" or needed & set(op.outputs):
                kept.append(op)
                needed.update(i for i in op.inputs if i != ABSENT)
                needed.update(op.outputs)
        order = {old: place for place, old in enumerate(sorted(needed))}
        order[ABSENT] = ABSENT
        values = tuple(self.values[old] for old in sorted(needed))
        self.tensors = {v.name: self.tensors[v.name] for v in values if v.kind == "weight"}
        ops = tuple(
            Op(
                op.kind,
                op.name,
                tuple(order[i] for i in op.inputs),
                tuple(order[i] for i in op.outputs),
                op.attrs,
            )
            for op in reversed(kept)
        )
        return Program(
            values=values,
            ops=ops,
            caches=tuple(self.caches),
            tokens=order[self.tokens],
            positions=order[self.positions],
            logits=order[self.logits],
        )
