"""A session that runs the program with numpy: small and right, not fast.

The cache is cut into blocks of 16 tokens. A step takes any tokens of any sequences, and trees.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qeff.container.program import Program
from qeff.container.reader import Container
from qeff.core.errors import ContainerError
from qeff.ops import Step
from qeff.ops.interpreter import Interpreter
from qeff.runtime.session import (
    Batch,
    Capabilities,
    Session,
    StepOutput,
    count_heads,
    split_heads,
)

PROGRAM = "program.json"
ALWAYS = ("deterministic",)  # no result depends on what else is in a step
BLOCK_LEN = 16


def open_session(container: Container, threads: int | None) -> Session:
    """The session for a container of this target; numpy has its own mind about threads."""
    try:
        data = json.loads(container.read_bytes(PROGRAM))
    except (ValueError, RecursionError) as error:
        raise ContainerError(f"{container.file(PROGRAM)} is malformed: {error}") from error
    program = Program.from_json(data)
    weights = {value.name: container.weight(value.name) for value in program.weights()}
    options = container.manifest.options
    caps = Capabilities(
        vocab_size=container.manifest.model.vocab_size,
        ctx_len=options.ctx_len,
        block_len=BLOCK_LEN,
        max_sequences=options.max_batch,
        max_step_tokens=options.ctx_len,
        supports_trees=True,
        quick_tokens=options.prefill_seq_len,
    )
    interpreter = Interpreter(program, weights)
    interpreter.check_weights()
    return ReferenceSession(interpreter, caps)


class ReferenceSession:
    """An interpreter, driven by batches."""

    def __init__(self, interpreter: Interpreter, caps: Capabilities) -> None:
        self._interpreter = interpreter
        self._num_blocks = 0
        num_logits = interpreter.program.values[interpreter.program.logits].shape[0]
        num_heads = count_heads(num_logits, caps.vocab_size)
        if num_heads is None:
            raise ContainerError(
                f"program gives {num_logits} logits, the model has {caps.vocab_size} tokens",
                "compile again",
            )
        self._caps = replace(caps, num_heads=num_heads)

    @property
    def caps(self) -> Capabilities:
        return self._caps

    def reserve(self, num_blocks: int) -> None:
        """Make room for this many cache blocks; what they held is lost."""
        self._num_blocks = num_blocks
        self._interpreter.reserve(num_blocks, self._caps.block_len)

    def step(self, batch: Batch) -> StepOutput:
        """Run all tokens, write their keys and values, return the rows asked for."""
        logits = self._interpreter.run(batch.tokens, self._describe(batch))
        return split_heads(logits, self._caps)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (from, to) each, in order."""
        self._interpreter.copy_blocks(pairs)

    def copy_rows(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy what the cache holds of single tokens, (from, to) each, in order."""
        self._interpreter.copy_rows(pairs)

    def close(self) -> None:
        """Give the memory back; the session cannot be used again."""
        self._interpreter.reserve(0, self._caps.block_len)
        self._num_blocks = 0

    def _describe(self, batch: Batch) -> Step:
        """Say for each token whose it is and in which row of that sequence's cache it goes."""
        owners = np.empty(len(batch.tokens), np.int64)
        slots = np.empty(len(batch.tokens), np.int64)
        end = 0
        for owner, span in enumerate(batch.spans):
            assert span.start == end < span.stop, f"span {span} leaves a gap or is empty"
            assert span.adapter == 0, "this target has no adapters"
            end = span.stop
            count = span.stop - span.start
            owners[span.start : span.stop] = owner
            # In a tree several tokens share a position, but each has a row of its own.
            slots[span.start : span.stop] = batch.positions[span.start] + np.arange(count)
            assert all(0 <= b < self._num_blocks for b in span.blocks), f"no block {span.blocks}"
            room = len(span.blocks) * self._caps.block_len
            assert slots[span.stop - 1] < room, f"{span} needs more than {room} cache rows"
        assert end == len(batch.tokens), "the spans do not cover the tokens"
        return Step(
            positions=batch.positions,
            owners=owners,
            slots=slots,
            rows=batch.logit_rows,
            tables=tuple(np.asarray(span.blocks, np.int64) for span in batch.spans),
            caches=self._interpreter.caches,
            parents=batch.parents,
        )
