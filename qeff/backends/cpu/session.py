"""A session on the native engine: batches in, logits out, one C call a step.

The engine reads the container's files itself, checks them, and maps the weights. Knows nothing of
how they were packed.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from qeff._native import Info, Library, load
from qeff._native import library as native
from qeff.container.program import Program
from qeff.container.reader import Container
from qeff.core.errors import ContainerError
from qeff.ops import validate
from qeff.runtime.session import CHOICE, Batch, Capabilities, Session, Span, StepOutput

PROGRAM = "program.json"
SPAN = np.dtype(  # ``qeff_span``; addresses are as wide as int64 on every machine it is built for
    [("start", np.int64), ("stop", np.int64), ("blocks", np.uint64), ("num_blocks", np.int64)]
)


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
    vocab_size = container.manifest.model.vocab_size
    if session.caps.vocab_size != vocab_size:
        session.close()
        raise ContainerError(
            f"program gives {session.caps.vocab_size} logits, the model has {vocab_size} tokens",
            "compile again",
        )
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

    @property
    def caps(self) -> Capabilities:
        return self._caps

    def reserve(self, num_blocks: int) -> None:
        """Make room for this many cache blocks; what they held is lost."""
        self._library.call("qeff_reserve", self._handle, num_blocks)

    def step(self, batch: Batch) -> StepOutput:
        """Run all tokens, write their keys and values, return the rows asked for."""
        tokens, positions = _int64(batch.tokens), _int64(batch.positions)
        rows = _int64(batch.logit_rows)
        assert len(tokens) == len(positions), "as many positions as tokens"
        spans, tables = _spans(batch.spans)
        assert all(span.adapter == 0 for span in batch.spans), "this target has no adapters"
        parents = None if batch.parents is None else np.ascontiguousarray(batch.parents, np.int32)
        assert parents is None or len(parents) == len(tokens), "as many parents as tokens"
        choices, chosen, num_logits = batch.choices, None, len(rows)
        if choices is not None:
            choices = np.ascontiguousarray(choices, CHOICE)
            assert len(choices) == len(rows), "as many choices as rows"
            chosen = np.empty(len(rows), np.int64)
            num_logits = int(np.count_nonzero(choices["temperature"] < 0))
        logits = np.empty((num_logits, self._caps.vocab_size), np.float32)
        call = native.Batch(
            _pointer(tokens, ctypes.c_int64),
            _pointer(positions, ctypes.c_int64),
            len(tokens),
            _pointer(spans, native.Span),
            len(spans),
            _pointer(rows, ctypes.c_int64),
            len(rows),
            None if parents is None else _pointer(parents, ctypes.c_int32),
            None if choices is None else _pointer(choices, native.Choice),
        )
        self._library.call(
            "qeff_step",
            self._handle,
            ctypes.byref(call),
            _pointer(logits, ctypes.c_float),
            None if chosen is None else _pointer(chosen, ctypes.c_int64),
        )
        del tables  # the call has read them through the spans' addresses
        return StepOutput(logits, chosen)

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


def _spans(spans: Sequence[Span]) -> tuple[np.ndarray, np.ndarray]:
    """All spans as ``qeff_span``, and the block tables that they point into."""
    lengths = [len(span.blocks) for span in spans]
    tables = np.fromiter(chain.from_iterable(span.blocks for span in spans), np.int32, sum(lengths))
    found = np.empty(len(spans), SPAN)
    found["start"] = [span.start for span in spans]
    found["stop"] = [span.stop for span in spans]
    found["num_blocks"] = lengths
    ends = np.cumsum(found["num_blocks"])
    found["blocks"] = tables.ctypes.data + tables.itemsize * (ends - found["num_blocks"])
    return found, tables


def _int64(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array, np.int64)


def _pointer(array: np.ndarray, kind: Any) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(kind))
