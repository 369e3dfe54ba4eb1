"""Bytes from a file to the device: read by several threads into pinned memory, copied beside that.

While one stretch is on its way over the bus, the next is read. On a machine without a GPU the
bytes are read straight to their place. Knows nothing of what they mean.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from qeff.core.errors import ContainerError

STRETCH = 64 << 20
BUFFERS = 3
THREADS = 8


class Stager:
    """Pinned buffers, threads that fill them and a stream that empties them; use with ``with``."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_gpu = device.type == "cuda"
        self._files: dict[Path, int] = {}
        self._pool = ThreadPoolExecutor(THREADS, "load")
        self._buffers: list[torch.Tensor] = []
        self._done: list[torch.cuda.Event] = []
        self._turn = 0
        if self._is_gpu:
            self._stream = torch.cuda.Stream(device)
            self._stream.wait_stream(torch.cuda.current_stream(device))

    def __enter__(self) -> Stager:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        for file in self._files.values():
            os.close(file)
        if self._is_gpu:
            self._stream.synchronize()
        self._buffers.clear()

    def fill(self, target: torch.Tensor, place: tuple[Path, int, int]) -> None:
        """Put a stretch of a file into a contiguous tensor, all of it; returns before it is there.

        Every call must come before leaving the ``with``.
        """
        path, start, stop = place
        assert target.is_contiguous(), "bytes go to one piece of memory"
        memory = target.reshape(-1).view(torch.uint8)
        assert memory.numel() == stop - start, f"{memory.numel()} bytes from {stop - start}"
        file = self._open(path)
        if not self._is_gpu:
            self._read(file, memory.numpy(), start)
            return
        for done in range(0, stop - start, STRETCH):
            count = min(STRETCH, stop - start - done)
            buffer = self._next_buffer()
            self._read(file, buffer.numpy()[:count], start + done)
            with torch.cuda.stream(self._stream):
                memory[done : done + count].copy_(buffer[:count], non_blocking=True)
                self._done[self._turn].record(self._stream)

    def _open(self, path: Path) -> int:
        if path not in self._files:
            self._files[path] = os.open(path, os.O_RDONLY)
        return self._files[path]

    def _next_buffer(self) -> torch.Tensor:
        if len(self._buffers) < BUFFERS:
            self._turn = len(self._buffers)
            self._buffers.append(torch.empty(STRETCH, dtype=torch.uint8, pin_memory=True))
            self._done.append(torch.cuda.Event())
        else:
            self._turn = (self._turn + 1) % BUFFERS
            self._done[self._turn].synchronize()
        return self._buffers[self._turn]

    def _read(self, file: int, memory: np.ndarray, start: int) -> None:
        """Fill memory from the file, each thread a part."""
        each = max(1 << 20, -(-len(memory) // THREADS))
        parts = [(at, min(at + each, len(memory))) for at in range(0, len(memory), each)]
        jobs = [self._pool.submit(_read_part, file, memory[a:b], start + a) for a, b in parts]
        for job in jobs:
            job.result()


def _read_part(file: int, memory: np.ndarray, start: int) -> None:
    view = memory.data
    done = 0
    while done < len(view):
        count = os.preadv(file, [view[done:]], start + done)
        if count <= 0:
            raise ContainerError("the weights file ends early", "compile again")
        done += count
