"""Run a container in ONNX Runtime on the processor.

The cache is one array [slots, heads, ctx, dim] per layer and kind; a block is a slot. A call
covers neighbouring slots by binding that part of the memory as both input and output, so keys and
values are written in place. A step becomes one call for all sequences of one token, and one for
each run of equal prompts in neighbouring slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from qeff.container.reader import Container
from qeff.core.errors import ContainerError, RequestError, ResourceError
from qeff.core.formats import FORMATS
from qeff.core.spec import INPUT_IDS, LOGITS, LOGITS_INDEX, POSITION_IDS, RETAINED
from qeff.runtime.session import (
    Batch,
    Capabilities,
    Session,
    Span,
    StepOutput,
    count_heads,
    split_heads,
)

PROGRAM = "program.onnx"
CHUNK_TOKENS = 256  # a longer piece of a prompt gains little and makes large score matrices


def open_session(container: Container, threads: int | None) -> Session:
    """The session for a container of this target."""
    return OrtSession(container, threads)


class OrtSession:
    """One ONNX Runtime session and the cache arrays that it writes to."""

    def __init__(self, container: Container, threads: int | None = None) -> None:
        import onnxruntime

        options = container.manifest.options
        self._caches_wanted = _cache_ports(container)
        self._run = _load(onnxruntime, container, threads)
        self._caches: dict[str, np.ndarray] = {}
        self._bindings: dict[tuple[int, int], Any] = {}
        self._num_slots = 0
        self._num_logits = _num_logits(container)
        vocab_size = container.manifest.model.vocab_size
        num_heads = count_heads(self._num_logits, vocab_size) or 0
        self._caps = Capabilities(
            vocab_size=self._num_logits // (1 + num_heads),
            ctx_len=options.ctx_len,
            block_len=options.ctx_len,
            max_sequences=options.max_batch,
            max_step_tokens=min(options.ctx_len, max(options.prefill_seq_len, CHUNK_TOKENS)),
            max_blocks=options.num_slots,
            num_heads=num_heads,
        )

    @property
    def caps(self) -> Capabilities:
        return self._caps

    def reserve(self, num_blocks: int) -> None:
        """Make room for this many cache slots; what they held is lost."""
        if num_blocks > (self._caps.max_blocks or num_blocks):
            raise ResourceError(
                f"{num_blocks} cache slots are wanted, the container has {self._caps.max_blocks}",
                "compile with a larger full_batch_size or kv_cache_batch_size",
            )
        self._bindings.clear()
        self._num_slots = num_blocks
        self._caches = {
            name: np.zeros((num_blocks, heads, self._caps.ctx_len, dim), dtype)
            for name, heads, dim, dtype in self._caches_wanted
        }

    def step(self, batch: Batch) -> StepOutput:
        """Run all tokens, write their keys and values, return the rows asked for."""
        if batch.parents is not None:
            raise RequestError(
                "ONNX Runtime cannot run trees of tokens", "verify one line at a time"
            )
        logits = np.empty((len(batch.logit_rows), self._num_logits), np.float32)
        for spans in _group(batch.spans):
            self._call(batch, spans, logits)
        return split_heads(logits, self._caps)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole slots, (from, to) each, in order."""
        for source, target in pairs:
            for cache in self._caches.values():
                cache[target] = cache[source]

    def copy_rows(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy what the cache holds of single tokens, (from, to) each, in order."""
        ctx_len = self._caps.ctx_len
        for cache in self._caches.values():
            for source, target in pairs:
                row = cache[source // ctx_len, :, source % ctx_len]
                cache[target // ctx_len, :, target % ctx_len] = row

    def close(self) -> None:
        """Give memory and threads back; the session cannot be used again."""
        self._bindings.clear()
        self._caches.clear()
        self._num_slots = 0
        self._run = None

    def _call(self, batch: Batch, spans: Sequence[Span], logits: np.ndarray) -> None:
        """One run of the program over the slots from the first span's to the last's."""
        slots = [_slot(span, self._num_slots) for span in spans]
        low, high = min(slots), max(slots) + 1
        seq_len = max(span.stop - span.start for span in spans)
        ids = np.zeros((high - low, seq_len), np.int64)
        positions = np.full((high - low, seq_len), -1, np.int64)
        place = np.full(len(batch.tokens), -1, np.int64)  # of a token in the flattened rows
        for span, slot in zip(spans, slots, strict=True):
            row, count = slot - low, span.stop - span.start
            ids[row, :count] = batch.tokens[span.start : span.stop]
            positions[row, :count] = batch.positions[span.start : span.stop]
            place[span.start : span.stop] = row * seq_len + np.arange(count)
        wanted = np.flatnonzero(place[batch.logit_rows] >= 0)
        # A call that nobody wants logits of still computes one row, which is thrown away.
        index = place[batch.logit_rows[wanted]] if len(wanted) else np.zeros(1, np.int64)
        made = np.empty((len(index), self._num_logits), np.float32)
        binding = self._binding(low, high)
        for name, array in ((INPUT_IDS, ids), (POSITION_IDS, positions), (LOGITS_INDEX, index)):
            _bind(binding.bind_input, name, array)
        _bind(binding.bind_output, LOGITS, made)
        try:
            self._run.run_with_iobinding(binding)
        except RuntimeError as error:  # what the graph refuses: a position that has no row, for one
            text = str(error).rpartition("Status Message:")[2].strip() or str(error)
            raise RequestError(
                f"ONNX Runtime cannot run this step: {text}",
                "the text may be longer than the model's table of positions",
            ) from error
        if len(wanted):
            logits[wanted] = made

    def _binding(self, low: int, high: int) -> Any:
        """The cache memory of slots low..high as inputs and outputs alike; kept for later calls."""
        if (low, high) not in self._bindings:
            binding = self._run.io_binding()
            for name, cache in self._caches.items():
                part = cache[low:high]
                _bind(binding.bind_input, name, part)
                _bind(binding.bind_output, name + RETAINED, part)
            self._bindings[low, high] = binding
        return self._bindings[low, high]


def _bind(bind: Any, name: str, array: np.ndarray) -> None:
    assert array.flags.c_contiguous, f"{name} is not one piece of memory"
    bind(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)


def _slot(span: Span, num_slots: int) -> int:
    assert len(span.blocks) == 1 and 0 <= span.blocks[0] < num_slots, f"no slot {span.blocks}"
    assert span.adapter == 0, "this target has no adapters"
    return span.blocks[0]


def _group(spans: Iterable[Span]) -> list[list[Span]]:
    """Which spans run together: all of one token, and equally long ones in neighbouring slots."""
    by_length: dict[int, list[Span]] = {}
    for span in sorted(spans, key=lambda item: item.blocks):
        by_length.setdefault(span.stop - span.start, []).append(span)
    groups: list[list[Span]] = []
    for length, equal in sorted(by_length.items()):
        run: list[Span] = []
        for span in equal:
            # Decoding reads every weight for a single row already, so idle rows cost little there.
            if run and length > 1 and span.blocks[0] != run[-1].blocks[0] + 1:
                groups.append(run)
                run = []
            run.append(span)
        groups.append(run)
    return groups


def _cache_ports(container: Container) -> list[tuple[str, int, int, np.dtype]]:
    """Name, heads, dim and dtype of every cache, as the manifest's signature has them."""
    ports = {port.name: port for port in container.manifest.inputs}
    found = []
    for name in container.manifest.model.cache_names():
        port = ports.get(name)
        dtype = FORMATS[port.dtype].dtype if port and port.dtype in FORMATS else None
        if port is None or dtype is None or len(port.shape) != 4:
            raise ContainerError(f"{container.path} has no cache {name!r}", "compile again")
        heads, dim = port.shape[1], port.shape[3]
        assert isinstance(heads, int) and isinstance(dim, int), f"{name} has no fixed size"
        found.append((name, heads, dim, dtype))
    return found


def _num_logits(container: Container) -> int:
    """How many logits a row has; a head may be wider than the tokenizer."""
    ports = [port for port in container.manifest.outputs if port.name == LOGITS]
    if not ports or not ports[0].shape or not isinstance(ports[0].shape[-1], int):
        raise ContainerError(f"{container.path} has no logits of a fixed size", "compile again")
    return ports[0].shape[-1]


def _load(onnxruntime: Any, container: Container, threads: int | None) -> Any:
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4  # errors are raised; the library need not print them too
    settings.intra_op_num_threads = threads or 0
    settings.inter_op_num_threads = 1
    state = onnxruntime.capi.onnxruntime_pybind11_state
    try:
        return onnxruntime.InferenceSession(
            str(container.file(PROGRAM)), settings, providers=["CPUExecutionProvider"]
        )
    except (state.Fail, state.InvalidGraph, state.InvalidProtobuf, state.NotImplemented) as error:
        text = str(error).splitlines()[0]
        raise ContainerError(
            f"ONNX Runtime cannot load {container.path}: {text}", "compile again"
        ) from error
