"""How much of the GPU's memory a session may take, and what of it is left for the cache.

A budget is a ceiling on everything that the process holds for tensors, kept by the allocator itself
until the session is closed. Knows nothing of programs.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from qeff.core.errors import ResourceError

_SPARE = 0.04  # of what is free, for the allocator's rounding and other libraries
_COPIED, _ROUNDS = 1 << 30, 8
# How torch's allocator asks the device: whole pieces for large tensors, shared ones for others.
_LARGE, PIECE, _SHARED = 10 << 20, 2 << 20, 22 << 20
LIBRARIES = 96 << 20  # cuBLAS's workspaces on two streams, and the first pieces of graphs


class Memory:
    """The device's memory, and a session's ceiling in it."""

    def __init__(self, device: torch.device, budget: int | None) -> None:
        self.device = device
        self.budget = budget
        self._fraction: float | None = None  # of the process, before this session
        if device.type == "cuda" and budget is not None:
            total = torch.cuda.get_device_properties(device).total_memory
            self._fraction = torch.cuda.get_per_process_memory_fraction(device)
            torch.cuda.set_per_process_memory_fraction(min(1.0, budget / total), device)

    def lift(self) -> None:
        """End the ceiling: what was allowed before this session is allowed again."""
        if self._fraction is not None:
            torch.cuda.set_per_process_memory_fraction(self._fraction, self.device)
            self._fraction = None

    def check(self, needed: int) -> None:
        """Refuse a budget that is smaller than what a session needs to serve one sequence."""
        if self.budget is None:
            return
        if self.device.type == "cuda":
            self.trim()
            needed += torch.cuda.memory_reserved(self.device)
        if needed > self.budget:
            least = math.ceil(needed / (1 << 30) * 100) / 100
            raise ResourceError(
                f"{self.budget / (1 << 30):.2f} GiB of GPU memory do not hold the weights, the"
                " largest step and the cache of one sequence",
                f"give a --vram-budget of at least {least:.2f}, or lower --ctx-len or"
                " --full-batch-size",
            )

    def left(self, taken: int) -> int | None:
        """Bytes that may still be asked for; None where nobody counts.

        ``taken`` are those of the weights, for a device whose allocator does not count.
        """
        if self.device.type != "cuda":
            return None if self.budget is None else self.budget - taken
        if self.budget is not None:
            self.trim()
            return self.budget - torch.cuda.memory_reserved(self.device)
        free, _ = torch.cuda.mem_get_info(self.device)
        held = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return int((free + held) * (1 - _SPARE))

    def max_blocks(self, block_bytes: int, reserved: int, taken: int) -> int | None:
        """Cache blocks that fit beside ``reserved`` bytes; one more is kept for padding."""
        left = self.left(taken)
        if left is None or not block_bytes:
            return None
        return max(0, (left - reserved - PIECE) // block_bytes - 1)

    @contextmanager
    def guard(self, what: str, hint: str) -> Iterator[None]:
        """Turn running out into one sentence; whatever was being made is given back."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            traceback.clear_frames(error.__traceback__)  # they hold on to what was being made
            self.trim()
            raise ResourceError(f"the GPU's memory does not hold {what}", hint) from error

    def copy_rate(self) -> float:
        """Bytes a second that a copy reads and writes, the best of some rounds."""
        source = torch.ones(_COPIED, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        if self.device.type != "cuda":
            began = time.perf_counter()
            target.copy_(source)
            return 2 * _COPIED / (time.perf_counter() - began)
        best = 0.0
        for _ in range(_ROUNDS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            target.copy_(source)
            end.record()
            end.synchronize()
            best = max(best, 2 * _COPIED / (begin.elapsed_time(end) * 1e-3))
        return best

    @staticmethod
    def held_for(sizes: Iterable[int]) -> int:
        """Bytes that the allocator holds at most for tensors of these sizes."""
        large = other = 0
        for size in sizes:
            if size >= _LARGE:
                large += -(-size // PIECE) * PIECE
            else:
                other += size
        return large + other * 3 // 2 + _SHARED

    def trim(self) -> None:
        """Give memory that is held for later back to the device."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
