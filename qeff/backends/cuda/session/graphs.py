"""Steps that are played back: captured once for each key, then launched as one.

A small step is captured when it is first seen, after an ordinary run that makes sure that all
kernels are compiled. A large one is captured when it is seen for the second time; a bounded
number of them is kept, the ones used last, and within a bound of memory. The graphs of a shelf
share one pool of memory, since they never run beside each other. Knows nothing of what a step does.
"""

from __future__ import annotations

import traceback
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from qeff.backends.cuda.session.step_buffer import Sizes

MOST_LARGE = 32  # graphs of large steps
_MOST_SEEN = 256  # keys of large steps that are remembered


@dataclass(frozen=True, slots=True)
class Mode:
    """What becomes of the logits."""

    chooses: bool  # tokens are chosen
    draws: bool  # some of them at random
    filters: bool  # of some of these only the likeliest count
    shows: bool  # logits go to the host


@dataclass(frozen=True, slots=True)
class Key:
    """What the launches of a step depend on."""

    sizes: Sizes
    longest: int  # cache rows that a token sees at most
    is_decode: bool  # one token for each sequence
    is_same: bool  # the rows are the tokens, in order
    mode: Mode


@dataclass(slots=True)
class Made:
    """What a step leaves on the device."""

    logits: torch.Tensor | None
    tokens: torch.Tensor | None


class Graph(Protocol):
    """Something captured."""

    def replay(self) -> None: ...


class Recorder(Protocol):
    """Captures a step into a pool; gives what it leaves, and bytes that the pool grew by."""

    def __call__(self, pool: Any, step: Callable[[], Made]) -> tuple[Graph, Made, int]: ...


@dataclass(slots=True)
class _Shelf:
    pool: Any = None
    graphs: OrderedDict[Key, tuple[Graph, Made]] = field(default_factory=OrderedDict)
    num_bytes: int = 0

    def clear(self) -> None:
        self.graphs.clear()
        self.pool, self.num_bytes = None, 0


class Graphs:
    """Captured steps by key; ``most_bytes`` bounds the memory of large ones."""

    def __init__(
        self, device: torch.device, most_bytes: int, record: Recorder | None = None
    ) -> None:
        self.is_on = device.type == "cuda" or record is not None
        self.num_captured = 0
        self._device, self._most_bytes = device, most_bytes
        self._record = record or self._capture
        self._small, self._large = _Shelf(), _Shelf()
        self._seen: OrderedDict[Key, None] = OrderedDict()
        self._refused: set[Key] = set()  # too large to be captured

    def clear(self) -> None:
        """Forget everything: memory has moved."""
        self._small.clear()
        self.clear_large()
        self._refused.clear()

    def clear_large(self) -> None:
        """Forget the large steps."""
        if self._large.graphs and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._large.clear()

    def run_small(self, key: Key, step: Callable[[Key], Made]) -> Made:
        """Play the step back, or run it and capture it, if there is memory for that."""
        found = self._small.graphs.get(key)
        if found is not None:
            found[0].replay()
            return found[1]
        made = step(key)
        if key not in self._refused:
            try:
                self._keep(self._small, key, step)
            except torch.OutOfMemoryError as error:
                traceback.clear_frames(error.__traceback__)  # they hold on to what was being made
                self._refused.add(key)
        return made

    def run_large(self, key: Key, step: Callable[[Key], Made]) -> Made:
        """Play the step back; run it when it is new, and capture it when it comes again."""
        found = self._large.graphs.get(key)
        if found is None:
            if key in self._refused or not self._is_known(key):
                return step(key)
            found = self._keep_large(key, step)
            if found is None:
                return step(key)
        else:
            self._large.graphs.move_to_end(key)
        found[0].replay()
        return found[1]

    def _is_known(self, key: Key) -> bool:
        """Whether the key was seen before; it is from here on."""
        is_known = key in self._seen
        self._seen[key] = None
        self._seen.move_to_end(key)
        if len(self._seen) > _MOST_SEEN:
            self._seen.popitem(last=False)
        return is_known

    def _keep_large(self, key: Key, step: Callable[[Key], Made]) -> tuple[Graph, Made] | None:
        """Capture a large step; None where there is no memory for it."""
        shelf = self._large
        while len(shelf.graphs) >= MOST_LARGE:
            shelf.graphs.popitem(last=False)
        try:
            found = self._keep(shelf, key, step)
        except torch.OutOfMemoryError:
            found = None
        if found is not None and shelf.num_bytes <= self._most_bytes:
            return found
        if len(shelf.graphs) <= 1:
            self._refused.add(key)
        self.clear_large()
        return None

    def _keep(
        self, shelf: _Shelf, key: Key, step: Callable[[Key], Made]
    ) -> tuple[Graph, Made] | None:
        if shelf.pool is None and self._device.type == "cuda":
            shelf.pool = torch.cuda.graph_pool_handle()
        graph, made, grown = self._record(shelf.pool, lambda: step(key))
        self.num_captured += 1
        shelf.num_bytes += grown
        shelf.graphs[key] = graph, made
        return graph, made

    def _capture(self, pool: Any, step: Callable[[], Made]) -> tuple[Graph, Made, int]:
        # What was made before must not be written over before it is read.
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            made = step()
        return graph, made, torch.cuda.memory_reserved(self._device) - before
