"""The lowered program: a flat list of ops over tokens, and the values between them.

There is no batch and no sequence axis. A *token* value holds one entry of ``shape`` for each
token of a step, a *row* value one for each requested row of logits, a *weight* value is a
constant of the weights file. Engines plan memory and run the list from first to last; they never
look at names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qeff.core.errors import ContainerError
from qeff.core.spec import CacheLayer

VERSION = 1
KINDS = ("token", "row", "weight")
PLAIN_DTYPES = ("f32", "f16", "bf16", "i64", "i32", "bool")
# Of weight matrices alone; what lies in the file for them is said in docs/panels.md.
PACKED_DTYPES = ("q8_0", "q4_0", "q4_1", "q4_k", "q6_k", "mxfp4", "mxfp6", "mxfp8")
ROW_SCALED_DTYPES = ("fp8",)  # of weight matrices too: E4M3 elements, a scale for each row
WEIGHT_DTYPES = PLAIN_DTYPES + PACKED_DTYPES + ROW_SCALED_DTYPES
ABSENT = -1  # an optional input that is not given


@dataclass(frozen=True, slots=True)
class Value:
    """What flows between ops: ``shape`` is that of one token, one row, or the whole weight."""

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str = "f32"


@dataclass(frozen=True, slots=True)
class Op:
    """One step of the program: a kind of ``qeff.ops``, indices of values, and attributes."""

    kind: str
    name: str  # where it came from, for error messages and profiles
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Program:
    """Ops in order; the caller fills ``tokens`` and ``positions``, ``logits`` is the result."""

    values: tuple[Value, ...]
    ops: tuple[Op, ...]
    caches: tuple[CacheLayer, ...]
    tokens: int
    positions: int
    logits: int

    def weights(self) -> list[Value]:
        return [value for value in self.values if value.kind == "weight"]

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "values": [[v.name, v.kind, list(v.shape), v.dtype] for v in self.values],
            "ops": [
                [o.kind, o.name, list(o.inputs), list(o.outputs), dict(o.attrs)] for o in self.ops
            ],
            "caches": [{name: getattr(c, name) for name in c.__slots__} for c in self.caches],
            "tokens": self.tokens,
            "positions": self.positions,
            "logits": self.logits,
        }

    @classmethod
    def from_json(cls, data: Any) -> Program:
        """Read and check that the list can be run from first to last."""
        try:
            if data["version"] != VERSION:
                raise ContainerError(
                    f"program has version {data['version']!r}, this release reads {VERSION}",
                    "compile again",
                )
            program = cls(
                values=tuple(
                    Value(str(n), str(k), tuple(map(int, s)), str(d))
                    for n, k, s, d in data["values"]
                ),
                ops=tuple(
                    Op(str(k), str(n), tuple(map(int, i)), tuple(map(int, o)), dict(a))
                    for k, n, i, o, a in data["ops"]
                ),
                caches=tuple(CacheLayer(**layer) for layer in data["caches"]),
                tokens=int(data["tokens"]),
                positions=int(data["positions"]),
                logits=int(data["logits"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ContainerError(f"program is malformed: {error!r}", "compile again") from error
        program.check()
        return program

    def check(self) -> None:
        """Raise ContainerError unless the list can be run from first to last."""
        made = {self.tokens, self.positions}
        for i, value in enumerate(self.values):
            dtypes = WEIGHT_DTYPES if value.kind == "weight" else PLAIN_DTYPES
            if value.kind not in KINDS or value.dtype not in dtypes:
                raise ContainerError(
                    f"program value {value.name!r} has kind {value.kind!r}, dtype {value.dtype!r}"
                )
            if any(size < 0 for size in value.shape):
                raise ContainerError(
                    f"program value {value.name!r} has a negative size: {value.shape}"
                )
            if value.kind == "weight":
                made.add(i)
        for op in self.ops:
            for i in op.inputs:
                if i != ABSENT and (i not in made or not 0 <= i < len(self.values)):
                    raise ContainerError(
                        f"op {op.name!r} ({op.kind}) uses value {i} before it is made"
                    )
            for i in op.outputs:
                if not 0 <= i < len(self.values) or i in made:
                    raise ContainerError(
                        f"op {op.name!r} ({op.kind}) makes value {i} again or out of range"
                    )
                made.add(i)
        if not {self.tokens, self.positions, self.logits} <= made or self.logits not in range(
            len(self.values)
        ):
            raise ContainerError("program names an input or output that does not exist")
