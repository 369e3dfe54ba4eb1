"""How much of the machine other processes take, so that only undisturbed measurements count.

Reads the kernel's counters under /proc, so it works on Linux only.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType

_IDLE = (3, 4)  # places of idle and of waiting for disks in the first line of /proc/stat
_SHOWN = 8  # the places after these repeat time that is counted in others


def used_seconds() -> float:
    """Processor time spent on anything, by all processes and cores, since the machine started."""
    first = Path("/proc/stat").read_text().partition("\n")[0].split()[1 : 1 + _SHOWN]
    ticks = sum(int(text) for place, text in enumerate(first) if place not in _IDLE)
    return ticks / os.sysconf("SC_CLK_TCK")


class Disturbance:
    """After ``with Disturbance() as found``: ``found.share`` of all cores went to others."""

    share = 0.0

    def __enter__(self) -> Disturbance:
        self._others = used_seconds() - time.process_time()
        self._clock = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        others = used_seconds() - time.process_time() - self._others
        capacity = (time.perf_counter() - self._clock) * (os.cpu_count() or 1)
        self.share = max(0.0, others / capacity)


def wait_until_quiet(share: float, limit_s: float) -> bool:
    """Wait until others take less than ``share`` for a second; False when time ran out."""
    end = time.monotonic() + limit_s
    while True:
        with Disturbance() as found:
            time.sleep(1)
        if found.share < share:
            return True
        if time.monotonic() > end:
            return False
