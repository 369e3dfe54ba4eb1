"""A planned program run in float32 only as far as somebody asks: what goes into an op.

All sequences of a text go through an op together before the next op runs, so that a weight is read
once and what is in memory is what later ops still need. Knows the ops' references, and nothing of
what the inputs are wanted for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from qeff.container.program import ABSENT, Op, Program
from qeff.ops import Step
from qeff.ops.registry import kinds

Cache = tuple[np.ndarray, np.ndarray]


class Walk:
    """Runs ops from first to last, each once; ``tokens`` is int64 [sequences, length]."""

    def __init__(
        self, program: Program, weights: Mapping[str, np.ndarray], tokens: np.ndarray
    ) -> None:
        self._program, self._weights = program, weights
        num_sequences, self._length = tokens.shape
        places = np.tile(np.arange(self._length), num_sequences)
        flat = tokens.reshape(-1)
        self._step = Step(
            positions=places,
            owners=np.repeat(np.arange(num_sequences), self._length),
            slots=places,
            rows=np.arange(len(flat)),  # what the last layer does is wanted for every token
            tables=tuple(np.array([i]) for i in range(num_sequences)),
        )
        self._made: dict[int, np.ndarray] = {program.tokens: flat, program.positions: places}
        self._caches: dict[int, Cache] = {}
        self._next = 0
        self._last_use = {i: at for at, op in enumerate(program.ops) for i in op.inputs}
        self._last_cache = {
            int(op.attrs["cache"]): at for at, op in enumerate(program.ops) if "cache" in op.attrs
        }

    def inputs_of(self, place: int) -> list[np.ndarray]:
        """The inputs of an op that are no weights, in order; ops must be asked for in order."""
        assert place >= self._next, f"op {place} has been passed"
        while self._next < place:
            self._run(self._next)
            self._next += 1
        return [self._made[i] for i in self._program.ops[place].inputs if i in self._made]

    def _run(self, place: int) -> None:
        op = self._program.ops[place]
        kind = kinds()[op.kind]
        inputs = [
            None if i == ABSENT else self._made[i] if i in self._made else self._weight(i)
            for i in op.inputs
        ]
        results = kind.reference(inputs, kind.complete(op.attrs), self._step_of(op))
        self._made.update(zip(op.outputs, results, strict=True))
        for index in op.inputs:
            if self._last_use.get(index) == place:
                self._made.pop(index, None)
        for index in [i for i, at in self._last_cache.items() if at == place]:
            self._caches.pop(index, None)

    def _weight(self, index: int) -> np.ndarray:
        return self._weights[self._program.values[index].name]

    def _step_of(self, op: Op) -> Step:
        """The step with the one cache that the op reads; the others need not be in memory."""
        if "cache" not in op.attrs:
            return self._step
        index, num_blocks = int(op.attrs["cache"]), len(self._step.tables)
        if index not in self._caches:
            layer = self._program.caches[index]
            shape = (num_blocks, self._length, layer.num_kv_heads)
            self._caches[index] = (
                np.zeros((*shape, layer.key_dim), np.float32),
                np.zeros((*shape, layer.value_dim), np.float32),
            )
        empty = np.zeros((num_blocks, self._length, 0, 0), np.float32)
        caches = [(empty, empty)] * len(self._program.caches)
        caches[index] = self._caches[index]
        return replace(self._step, caches=tuple(caches))
