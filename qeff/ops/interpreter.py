"""The program run op by op with the ops' own references: slow, right, and sparing of memory.

Weights are asked for by name when an op needs them and are not kept, so a mapping that reads them
from a checkpoint makes a model of any size run in the memory of its largest tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qeff.container.program import ABSENT, Program
from qeff.core.errors import ContainerError
from qeff.ops.base import NUMPY_DTYPES, Step
from qeff.ops.registry import kinds
from qeff.ops.validation import validate


class Interpreter:
    """A checked program with its weights, and caches once there is room for them."""

    def __init__(self, program: Program, weights: Mapping[str, np.ndarray]) -> None:
        validate(program)
        self.program = program
        self.caches: tuple[tuple[np.ndarray, np.ndarray], ...] = ()
        self._weights = weights
        self._last_use = {i: at for at, op in enumerate(program.ops) for i in op.inputs}

    def check_weights(self) -> None:
        """Raise ContainerError unless every weight is what the program says; reads them all."""
        for index, value in enumerate(self.program.values):
            if value.kind == "weight":
                self._weight(index)

    def reserve(self, num_blocks: int, block_len: int) -> None:
        """Make empty caches of this many blocks."""
        self.caches = tuple(
            (
                np.zeros((num_blocks, block_len, layer.num_kv_heads, layer.key_dim), np.float32),
                np.zeros((num_blocks, block_len, layer.num_kv_heads, layer.value_dim), np.float32),
            )
            for layer in self.program.caches
        )

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks of every cache, (from, to) each, in order."""
        for source, target in pairs:
            for keys, values in self.caches:
                keys[target] = keys[source]
                values[target] = values[source]

    def copy_rows(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy single rows of every cache, (from, to) each, in order, counted over all blocks."""
        for keys, values in self.caches:
            for cache in (keys, values):
                rows = cache.reshape(-1, *cache.shape[2:])
                for source, target in pairs:
                    rows[target] = rows[source]

    def run(self, tokens: np.ndarray, step: Step) -> np.ndarray:
        """The logits [R, vocab] of the step's rows; keys and values go into the caches."""
        program = self.program
        made: dict[int, np.ndarray] = {program.tokens: tokens, program.positions: step.positions}
        for place, op in enumerate(program.ops):
            kind = kinds()[op.kind]
            inputs = [
                None if i == ABSENT else made[i] if i in made else self._weight(i)
                for i in op.inputs
            ]
            results = kind.reference(inputs, kind.complete(op.attrs), step)
            for index, array in zip(op.outputs, results, strict=True):
                value = program.values[index]
                count = len(step.rows) if value.kind == "row" else len(tokens)
                assert array.shape == (count, *value.shape), f"{op.name} made {array.shape}"
                assert array.dtype == NUMPY_DTYPES[value.dtype], f"{op.name} made {array.dtype}"
                made[index] = array
            for index in op.inputs:
                if self._last_use.get(index) == place and index != program.logits:
                    made.pop(index, None)
        return made[program.logits].astype(np.float32, copy=False)

    def _weight(self, index: int) -> np.ndarray:
        value = self.program.values[index]
        array = self._weights[value.name]
        if array.shape != value.shape or array.dtype != NUMPY_DTYPES.get(value.dtype):
            raise ContainerError(
                f"weight {value.name!r} is {array.dtype}{array.shape} in the file, but"
                f" {value.dtype}{value.shape} in the program",
                "compile again",
            )
        return array
