"""A session on the native engine: batches in, logits out, one C call a step.

The engine reads the container's files itself, checks them, and maps the weights. Knows nothing of
how they were packed.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qeff._native import Info, Library, load
from qeff._native import library as native
from qeff.container.program import Program
from qeff.container.reader import Container
from qeff.core.errors import ContainerError
from qeff.ops import validate
from qeff.runtime.session import (
    CHOICE,
    Batch,
    Capabilities,
    Session,
    Span,
    StepOutput,
    count_heads,
    split_heads,
)

PROGRAM = "program.json"
ALWAYS = ("deterministic",)  # no result depends on what else is in a step
NUM_WORDS = ctypes.sizeof(native.Batch) // 8


def open_session(container: Container, threads: int | None) -> Session:
    """The session for a container of this target; ``threads`` None takes the physical cores."""
    path = container.file(PROGRAM)
    try:
        data = json.loads(container.read_bytes(PROGRAM))
    except (ValueError, RecursionError) as error:
        raise ContainerError(f"{path} is malformed: {error}", "compile again") from error
    program = Program.from_json(data)
    validate(program)
    options = container.manifest.options
    session = NativeSession(
        load(), str(container.path), threads or 0, options, widest_window(program)
    )
    try:
        session.read_heads(container.manifest.model.vocab_size)
    except ContainerError:
        session.close()
        raise
    return session


class NativeSession:
    """A handle of the native engine, and the arrays that a step shares with it."""

    def __init__(
        self,
        library: Library,
        folder: str,
        threads: int,
        options: Any,
        window: int | None = None,
    ) -> None:
        self._library = library
        self._handle: int | None = None
        self._batch = native.Batch()
        self._words = (ctypes.c_uint64 * NUM_WORDS).from_buffer(self._batch)
        self._error = ctypes.create_string_buffer(native.ERROR_BYTES)
        self._tokens, self._positions, self._rows = (
            Shared(np.int64),
            Shared(np.int64),
            Shared(np.int64),
        )
        self._spans, self._tables, self._parents = (
            Shared(np.int64),
            Shared(np.int32),
            Shared(np.int32),
        )
        self._choices, self._chosen = Shared(CHOICE), Shared(np.int64)
        self._known_spans: tuple[Span, ...] | None = None  # those that lie in the library's memory
        text = ctypes.create_string_buffer(native.ERROR_BYTES)
        code = ctypes.c_int()
        settings = native.Options(threads, None)  # the engine itself reads QEFF_ISA
        self._handle = library.c.qeff_open(
            folder.encode(), ctypes.byref(settings), ctypes.byref(code), text, native.ERROR_BYTES
        )
        native.raise_for(code.value, text.value)
        self.info = Info()
        library.c.qeff_describe(self._handle, ctypes.byref(self.info))
        self._caps = Capabilities(
            vocab_size=self.info.vocab_size,
            ctx_len=options.ctx_len,
            block_len=self.info.block_len,
            max_sequences=options.max_batch,
            max_step_tokens=options.ctx_len,
            supports_trees=True,
            quick_tokens=options.prefill_seq_len,
            window=window,
            chooses=True,
        )

    def read_heads(self, vocab_size: int) -> None:
        """Cut the rows of logits into those of the model and those of heads that guess."""
        num_heads = count_heads(self.info.vocab_size, vocab_size)
        if num_heads is None:
            raise ContainerError(
                f"program gives {self.info.vocab_size} logits, the model has {vocab_size} tokens",
                "compile again",
            )
        if num_heads:  # the engine chooses from whole rows
            self._caps = replace(
                self._caps, vocab_size=vocab_size, num_heads=num_heads, chooses=False
            )

    @property
    def caps(self) -> Capabilities:
        return self._caps

    def reserve(self, num_blocks: int) -> None:
        """Make room for this many cache blocks; what they held is lost."""
        self._library.call("qeff_reserve", self._handle, num_blocks)

    def step(self, batch: Batch) -> StepOutput:
        """Run all tokens, write their keys and values, return the rows asked for."""
        num_tokens, num_rows = len(batch.tokens), len(batch.logit_rows)
        assert num_tokens == len(batch.positions), "as many positions as tokens"
        parents, choices, num_logits = batch.parents, batch.choices, num_rows
        assert parents is None or num_tokens == len(parents), "as many parents as tokens"
        if choices is not None:
            assert num_rows == len(choices), "as many choices as rows"
            num_logits = int(np.count_nonzero(choices["temperature"] < 0))
        logits = np.empty((num_logits, self.info.vocab_size), np.float32)
        # The members of a qeff_batch in their order: each of them takes eight bytes.
        self._words[:] = [
            self._tokens.put(batch.tokens),
            self._positions.put(batch.positions),
            num_tokens,
            self._put_spans(batch.spans),
            len(batch.spans),
            self._rows.put(batch.logit_rows),
            num_rows,
            0 if parents is None else self._parents.put(parents),
            0 if choices is None else self._choices.put(choices),
        ]
        self._chosen.make_room(num_rows)
        code = self._library.c.qeff_step(
            self._handle,
            self._batch,
            ctypes.cast(logits.ctypes.data, native.FLOATS) if num_logits else None,
            None if choices is None else ctypes.cast(self._chosen.address, native.INTS),
            self._error,
            native.ERROR_BYTES,
        )
        if code:
            native.raise_for(code, self._error.value)
        if choices is None:
            return split_heads(logits, self._caps)
        return StepOutput(logits, self._chosen.array[:num_rows].copy())

    def _put_spans(self, spans: Sequence[Span]) -> int:
        """All spans as ``qeff_span``, and the block tables that they point into."""
        if spans is self._known_spans:  # the usual decode: they lie there from the step before
            return self._spans.address
        self._known_spans = None
        words: list[int] = []
        blocks: list[int] = []
        for start, stop, table, adapter in spans:
            assert adapter == 0, "this target has no adapters"
            words += (start, stop, 4 * len(blocks), len(table))
            blocks += table
        first = self._tables.put(blocks)
        address = self._spans.put(words)
        self._spans.array[2 : len(words) : 4] += first
        self._known_spans = spans if isinstance(spans, tuple) else None
        return address

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (from, to) each, in order."""
        flat = np.asarray(pairs, np.int32).reshape(-1)
        pointer = _pointer(flat, ctypes.c_int32)
        self._library.call("qeff_copy_blocks", self._handle, pointer, len(pairs))

    def copy_rows(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy what the cache holds of single tokens, (from, to) each, in order."""
        flat = np.asarray(pairs, np.int64).reshape(-1)
        pointer = _pointer(flat, ctypes.c_int64)
        self._library.call("qeff_copy_rows", self._handle, pointer, len(pairs))

    def profile(self, is_on: bool) -> None:
        """Time the phases of the steps that follow, or stop doing so."""
        self._library.c.qeff_profile(self._handle, int(is_on))

    def take_profile(self) -> list[tuple[list[list[str]], int]]:
        """For each phase its ops (kind and name) and the nanoseconds since the last call."""
        size = self._library.c.qeff_take_profile(self._handle, None, 0)
        text = ctypes.create_string_buffer(size)
        self._library.c.qeff_take_profile(self._handle, text, size)
        return [(ops, time) for ops, time in json.loads(text.value)]

    def close(self) -> None:
        """Give memory and threads back; the session cannot be used again."""
        if self._handle is not None:
            self._library.c.qeff_close(self._handle)
            self._handle = None

    def __del__(self) -> None:
        self.close()


def widest_window(program: Program) -> int | None:
    """How far back any layer looks; None where one of them looks at everything."""
    windows = [op.attrs.get("window", 0) for op in program.ops if op.kind == "attention"]
    return max(windows) if windows and all(windows) else None


class Shared:
    """An array that the library reads or writes: it stays in its place until it must grow."""

    def __init__(self, dtype: np.typing.DTypeLike) -> None:
        self.array = np.empty(0, dtype)
        self.make_room(64)

    def make_room(self, count: int) -> None:
        """Have room for this many; what it held may be lost."""
        if count > len(self.array):
            self.array = np.empty(max(count, 2 * len(self.array)), self.array.dtype)
            self.address = self.array.ctypes.data

    def put(self, values: np.ndarray | Sequence[int]) -> int:
        """Copy values in, and say where they are."""
        self.make_room(len(values))
        self.array[: len(values)] = values
        return self.address


def _pointer(array: np.ndarray, kind: Any) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(kind))
