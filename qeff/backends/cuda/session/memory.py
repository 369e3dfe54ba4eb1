"""How much of the GPU's memory a session may take, and what of it is left for the cache.

A budget is a ceiling on everything that is allocated for tensors, kept by the allocator itself.
Knows nothing of programs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from qeff.core.errors import ResourceError

_SPARE = 0.04  # of what is free, for the allocator's rounding and other libraries
_COPIED, _ROUNDS = 1 << 30, 8


class Memory:
    """The device's memory, and a session's ceiling in it."""

    def __init__(self, device: torch.device, budget: int | None) -> None:
        self.device = device
        self.budget = budget
        if device.type == "cuda" and budget is not None:
            total = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, budget / total), device)

    def left(self) -> int | None:
        """Bytes that may still be allocated; None where nobody counts."""
        if self.device.type != "cuda":
            return None
        taken = torch.cuda.memory_allocated(self.device)
        if self.budget is not None:
            return max(0, self.budget - taken)
        free, _ = torch.cuda.mem_get_info(self.device)
        held = torch.cuda.memory_reserved(self.device) - taken
        return int((free + held) * (1 - _SPARE))

    def max_blocks(self, block_bytes: int, reserved: int) -> int | None:
        """Cache blocks that fit beside ``reserved`` bytes; one more is kept for padding."""
        left = self.left()
        if left is None or not block_bytes:
            return None
        return max(0, (left - reserved) // block_bytes - 1)

    @contextmanager
    def guard(self, what: str, hint: str) -> Iterator[None]:
        """Turn running out into one sentence; whatever was being made is given back."""
        try:
            yield
        except torch.OutOfMemoryError as error:
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

    def trim(self) -> None:
        """Give memory that is held for later back to the device."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
