"""A session on the GPU: batches in, tokens or logits out.

A step is described on the host, sent in one copy, run, and only what was asked for comes back.
``begin`` returns while the step runs, so that the next one can be planned meanwhile. Steps of
sizes that come again are played back from captured graphs.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import triton

from qeff.backends.cuda.session import describe
from qeff.backends.cuda.session.cache import BLOCK_LEN, LayerCache, settled
from qeff.backends.cuda.session.choosing import Chooser
from qeff.backends.cuda.session.compiling import compiling
from qeff.backends.cuda.session.executor import Executor
from qeff.backends.cuda.session.graphs import Graphs, Key, Made, Mode
from qeff.backends.cuda.session.memory import Memory
from qeff.backends.cuda.session.padding import Extent, Padded, pad, reach_of, row_size
from qeff.backends.cuda.session.pending import Pending
from qeff.backends.cuda.session.preparing import Trial, kinds, trials
from qeff.backends.cuda.session.step_buffer import Sizes, StepBuffer, info_of
from qeff.runtime.session import Batch, Capabilities, StepOutput

MOST_SHOWN = 64 << 20  # bytes of logits that a captured large step may keep
_HINT = "lower --full-batch-size or --ctx-len, take a narrower --kv-precision, or raise"
_STEP_HINT = "lower --step-tokens, --prompt-len or --full-batch-size, or raise --vram-budget"


class CudaSession:
    """An executor with caches, driven by batches."""

    def __init__(
        self,
        executor: Executor,
        caps: Capabilities,
        memory: Memory,
        limits: tuple[int, int],
        graph_bytes: int,
    ) -> None:
        self._executor, self._caps, self._memory = executor, caps, memory
        self._limits = limits  # tokens and positions that the model has tables for
        self._device = memory.device
        self._num_blocks = 0
        self._shape: describe.Shape | None = None  # of the latest step
        self._graphs = Graphs(self._device, graph_bytes)
        self._moves = 0  # of the memory that large steps work in, as far as graphs know
        self._buffer = StepBuffer(1 << 20, self._device)
        self._max_choices = row_size(max(64, caps.max_sequences))
        self._chooser = Chooser(self._max_choices, caps.vocab_size, self._device)
        self._is_closed = False

    @property
    def caps(self) -> Capabilities:
        return self._caps

    @property
    def caches(self) -> list[LayerCache]:
        """One for each attention that writes."""
        return self._executor.place.caches

    def reserve(self, num_blocks: int) -> None:
        """Make room for this many cache blocks; what they held is lost."""
        self._graphs.clear()
        self._num_blocks, self._shape = 0, None
        for cache in self.caches:  # given back before as much is asked for again
            cache.lay(torch.empty(0, dtype=torch.uint8), 0)
        count = num_blocks + 1  # one for padding
        size = sum(cache.bytes_per_block for cache in self.caches) * count
        with self._memory.guard(f"a cache of {size / (1 << 30):.1f} GiB", f"{_HINT} --vram-budget"):
            # One piece for all layers: it is there or it is not, and rounded up once.
            memory = torch.zeros(size, dtype=torch.uint8, device=self._device)
        for cache in self.caches:
            cache.lay(memory, count)
            memory = memory[cache.bytes_per_block * count :]
        self._num_blocks = num_blocks

    def prepare(self) -> None:
        """Compile the kernels of every step that may come, and capture those that are small."""
        assert self._num_blocks, "the cache is reserved before"
        if not self._graphs.is_on:
            return
        steps = trials(self._caps)
        if not triton.knobs.runtime.interpret:
            with compiling() as take_over:
                for trial in kinds(steps):
                    self._try(trial, is_dry=True)
                    take_over()
        for trial in steps:
            self._try(trial)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _try(self, trial: Trial, *, is_dry: bool = False) -> None:
        """Run a step that means nothing, in the block of padding, which nobody reads."""
        batch = trial.batch(self._num_blocks)
        shape = describe.Shape.of(batch.spans, BLOCK_LEN, self._num_blocks + 1)
        what = f"a step of {trial.tokens} tokens"
        with self._memory.guard(what, _STEP_HINT), torch.inference_mode():
            if is_dry:
                self._run(self._described(batch, shape, trial.longest)[0])
            else:
                self._begin(batch, shape, trial.longest)

    def step(self, batch: Batch) -> StepOutput:
        """Run all tokens, write their keys and values, return the rows asked for."""
        return self.begin(batch).result()

    def begin(self, batch: Batch) -> Pending:
        """Start a step; tokens of −1 − i are those chosen for row i of the step begun before."""
        assert not self._is_closed, "the session is closed"
        if self._shape is None or batch.spans is not self._shape.spans:
            self._shape = describe.Shape.of(batch.spans, BLOCK_LEN, self._num_blocks)
        longest = describe.check(batch, self._shape, self._limits)
        if batch.parents is not None and describe.is_line(batch):
            batch = replace(batch, parents=None)
        what = f"a step of {len(batch.tokens)} tokens"
        with self._memory.guard(what, _STEP_HINT), torch.inference_mode():
            return self._begin(batch, self._shape, longest)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (from, to) each, in order."""
        with self._memory.guard(f"a copy of {len(pairs)} cache blocks", _STEP_HINT):
            for cache, indices in self._copies(pairs):
                cache.copy_blocks(*indices)

    def copy_rows(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy what the cache holds of single tokens, (from, to) each, in order."""
        with self._memory.guard(f"a copy of {len(pairs)} cache rows", _STEP_HINT):
            for cache, indices in self._copies(pairs):
                cache.copy_rows(*indices)

    def memory_rate(self) -> float:
        """Bytes a second that a copy in the device's memory reads and writes."""
        return self._memory.copy_rate()

    def close(self) -> None:
        """Give the memory back; the session cannot be used again."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._graphs.clear()
        for name in ("_executor", "_chooser", "_buffer"):
            setattr(self, name, None)
        self._memory.lift()
        self._memory.trim()

    def _copies(self, pairs: Sequence[tuple[int, int]]) -> list[tuple[LayerCache, Any]]:
        if not pairs:
            return []
        sources, targets = settled(pairs)
        indices = tuple(
            torch.tensor(numbers, dtype=torch.int64, device=self._device)
            for numbers in (sources, targets)
        )
        return [(cache, indices) for cache in self.caches]

    def _begin(self, batch: Batch, shape: describe.Shape, longest: int) -> Pending:
        if not len(batch.tokens):
            return Pending.nothing(batch, self._caps)
        key, padded = self._described(batch, shape, longest)
        made = self._played(key, padded)
        if made is None:  # with the memory of captured steps it may fit
            self._graphs.clear()
            self._memory.trim()
            made = self._run(key)
        return Pending.make(made, batch, self._caps)

    def _described(self, batch: Batch, shape: describe.Shape, longest: int) -> tuple[Key, Padded]:
        """Send the step's description; what its launches depend on, and its sizes."""
        num_tokens, num_rows = len(batch.tokens), len(batch.logit_rows)
        mode = _mode(batch)
        is_decode = shape.is_decode
        is_same = num_rows == num_tokens and bool((batch.logit_rows == np.arange(num_tokens)).all())
        extent = Extent(num_tokens, len(batch.spans), num_rows, longest, is_decode, is_same)
        padded = self._padded(extent, mode)
        sizes = Sizes(
            tokens=padded.tokens,
            spans=padded.spans,
            rows=padded.rows,
            width=padded.reach // BLOCK_LEN,
            words=describe.ancestor_words(batch),
            chooses=mode.chooses,
        )
        if mode.chooses:
            assert self._caps.chooses, "this model's rows are not chosen from"
            self._make_choosable(padded.rows)
        if not self._buffer.holds(sizes):
            self._graphs.clear()  # they read from the memory that is given up
            self._buffer = StepBuffer(2 * sizes.places()[1], self._device)
        describe.fill(self._buffer.next_host(sizes), batch, shape, sizes, self._num_blocks)
        self._buffer.send(sizes)
        return Key(sizes, padded.reach, is_decode, is_same, mode), padded

    def _padded(self, extent: Extent, mode: Mode) -> Padded:
        """The sizes that a step is run with."""
        if not self._graphs.is_on:
            reach = reach_of(extent.longest, self._caps.ctx_len)
            return Padded(extent.tokens, extent.spans, extent.rows, reach)
        size = torch.float32.itemsize * self._caps.vocab_size * (1 + self._caps.num_heads)
        most_rows = MOST_SHOWN // size if mode.shows else extent.tokens + 1024
        return pad(extent, self._caps.ctx_len, most_rows)

    def _played(self, key: Key, padded: Padded) -> Made | None:
        """The step that was described last, captured or not; None where it did not fit."""
        try:
            return self._launched(key, padded)
        except torch.OutOfMemoryError as error:
            traceback.clear_frames(error.__traceback__)  # they hold on to what was being made
            return None

    def _launched(self, key: Key, padded: Padded) -> Made:
        if padded.is_small:
            return self._graphs.run_small(key, self._run)
        made = self._graphs.run_large(key, self._run) if padded.is_large else self._run(key)
        moves = self._executor.place.moves
        if moves != self._moves:
            self._moves = moves
            self._graphs.clear_large()  # they use memory that was given up
        return made

    def _run(self, key: Key) -> Made:
        """The step that was described last, on the device."""
        arrays = self._buffer.view(key.sizes)
        info = info_of(arrays, key.sizes, key.longest, key.is_decode)
        is_padded = self._graphs.is_on and key.sizes.rows == key.sizes.tokens
        # The stages of all rows differ in what they fuse: for equal bits every step takes others.
        is_whole = (key.is_same or is_padded) and not self._executor.place.deterministic
        logits = self._executor.run(info, is_whole, self._chooser.tokens)
        if is_whole and not key.is_same:
            logits = logits.index_select(0, info.rows)
        tokens = None
        if key.mode.chooses:
            self._chooser.choices = arrays["choices"]
            tokens = self._chooser.choose(
                logits, all_greedy=not key.mode.draws, is_filtered=key.mode.filters
            )
        return Made(logits if key.mode.shows else None, tokens)

    def _make_choosable(self, num_rows: int) -> None:
        """Have room to choose so many tokens."""
        if num_rows > self._max_choices:
            self._graphs.clear()
            chooser = Chooser(num_rows, self._caps.vocab_size, self._device)
            chooser.tokens[: len(self._chooser.tokens)].copy_(self._chooser.tokens)
            self._chooser, self._max_choices = chooser, num_rows


def _mode(batch: Batch) -> Mode:
    """What is made of the logits."""
    if batch.choices is None or not len(batch.choices):
        return Mode(chooses=False, draws=False, filters=False, shows=True)
    choices = batch.choices
    temperature = choices["temperature"]
    most = float(temperature.max())
    filters = most > 0 and bool(
        choices["top_k"].any() or (choices["top_p"] < 1).any() or choices["min_p"].any()
    )
    shows = float(temperature.min()) < 0
    return Mode(chooses=most >= 0, draws=most > 0, filters=filters, shows=shows)
