"""What the machine can do at best: bytes read and int8 products made in a second, by measurement.

The native library measures both, with the instructions that its kernels use. Without it numpy
measures the reading, and products are not known.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from qeff._native import load
from qeff.apps.machine import physical_cores
from qeff.core.errors import ResourceError
from qeff.core.progress import log

ARRAY_BYTES = 128 << 20  # of each thread; far more than any cache holds
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Limits:
    """Rates of the whole machine with a number of threads; None is not known."""

    read_bytes_s: float
    int8_mac_s: float | None
    threads: int
    method: str

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def measure_limits(threads: int | None) -> Limits:
    """The best of some rounds, which is what no neighbour has disturbed."""
    count = threads or physical_cores()
    try:
        library = load()
    except ResourceError as error:
        log.info("numpy measures the machine: %s", error.what)
        return Limits(_read_with_numpy(count), None, count, "numpy")
    read, products = library.measure_limits(count)
    return Limits(read, products, count, "native")


def _read_with_numpy(threads: int) -> float:
    arrays = [np.ones(ARRAY_BYTES // 4, np.int32) for _ in range(threads)]
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(ROUNDS):
            began = time.perf_counter()
            list(pool.map(np.max, arrays))
            best = max(best, threads * ARRAY_BYTES / (time.perf_counter() - began))
    return best
