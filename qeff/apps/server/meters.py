"""Counts what a model's requests go through: tokens, times, ends, and the last minutes of them.

A meter's ``snapshot`` is plain values that can be sent to another process, and ``add`` puts the
snapshots of several processes together. Knows nothing of engines and of how numbers are shown.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from qeff.generate.request import Result

HISTORY_S = 120  # seconds of history, one place each
RECENT_S = 300.0  # how far back percentiles look
MAX_RECENT = 4096

_SECONDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_STEPS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
_WHOLE = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
    240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
# The upper ends of the buckets, by what is measured.
BUCKETS: dict[str, tuple[float, ...]] = {
    "ttft_s": _SECONDS,
    "itl_s": _STEPS,
    "e2e_s": _WHOLE,
    "queue_s": _WHOLE,
    "prefill_s": _WHOLE,
    "decode_s": _WHOLE,
    "prompt_tokens": _COUNTS,
    "output_tokens": _COUNTS,
}
RECENT = ("ttft_s", "itl_s", "e2e_s")


class Histogram:
    """How many values lay in each bucket, and their sum."""

    def __init__(self, ends: tuple[float, ...]) -> None:
        self._ends = ends
        self._counts = [0] * (len(ends) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._ends, value)] += 1
        self._sum += value

    def snapshot(self) -> dict[str, Any]:
        return {"counts": list(self._counts), "sum": self._sum}


class Meter:
    """The counts of one model in this process; used from the event loop alone."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._totals: Counter[str] = Counter()
        self._finishes: Counter[str] = Counter()
        self._histograms = {name: Histogram(ends) for name, ends in BUCKETS.items()}
        self._recent: dict[str, deque[tuple[float, float]]] = {
            name: deque(maxlen=MAX_RECENT) for name in RECENT
        }
        self._seconds: dict[int, Counter[str]] = {}  # what happened in each of the last seconds
        self.num_open = 0  # requests that were asked and have not ended

    def start(self, num_prompt_tokens: int) -> Timing:
        """A request begins."""
        self.num_open += 1
        return Timing(self, num_prompt_tokens)

    def count(self, name: str, number: int = 1) -> None:
        """Add to a total and to the history of this second."""
        self._totals[name] += number
        now = int(self._clock())
        if now not in self._seconds:
            self._seconds[now] = Counter()
            for old in [second for second in self._seconds if second <= now - HISTORY_S]:
                del self._seconds[old]
        self._seconds[now][name] += number

    def level(self, name: str, value: float) -> None:
        """Note how high something is in this second."""
        self.count(name, 0)
        self._seconds[int(self._clock())][f"level {name}"] = value  # type: ignore[assignment]

    def finish(self, reason: str) -> None:
        """An output ended."""
        self._finishes[reason] += 1
        self.count("finished")

    def observe(self, name: str, value: float) -> None:
        """Note one value of something that has a histogram."""
        self._histograms[name].observe(value)
        if name in self._recent:
            self._recent[name].append((self._clock(), value))

    def snapshot(self) -> dict[str, Any]:
        """All counts as plain values."""
        oldest = self._clock() - RECENT_S
        return {
            "open": self.num_open,
            "totals": dict(self._totals),
            "finishes": dict(self._finishes),
            "histograms": {name: one.snapshot() for name, one in self._histograms.items()},
            "recent": {
                name: [value for at, value in values if at >= oldest]
                for name, values in self._recent.items()
            },
            "seconds": {str(second): dict(counts) for second, counts in self._seconds.items()},
        }


class Timing:
    """The clock of one request."""

    def __init__(self, meter: Meter, num_prompt_tokens: int) -> None:
        self._meter = meter
        self._num_prompt_tokens = num_prompt_tokens
        self._began = time.perf_counter()
        self._last: dict[int, float] = {}  # when each output got its last token
        self._num_tokens: Counter[int] = Counter()
        self._has_ended = False
        self._num_finished = 0

    def note(self, index: int, num_tokens: int, result: Result | None, finish: str | None) -> None:
        """An output got tokens, and its end where there is one."""
        now = time.perf_counter()
        meter = self._meter
        if num_tokens:
            if not self._last:
                meter.count("prompt_tokens", self._num_prompt_tokens)
                meter.observe("ttft_s", now - self._began)
            if index in self._last:
                meter.observe("itl_s", now - self._last[index])
            self._last[index] = now
            meter.count("output_tokens", num_tokens)
            self._num_tokens[index] += num_tokens
        if result is not None:
            self._close(index, now, result, finish or "abort")

    def end(self) -> None:
        """Nothing more comes; where no output ended, the request was given up."""
        if not self._has_ended:
            self._has_ended = True
            self._meter.num_open -= 1
            if not self._num_finished:
                self._meter.finish("abort")

    def _close(self, index: int, now: float, result: Result, finish: str) -> None:
        meter = self._meter
        self._num_finished += 1
        meter.finish(finish)
        meter.observe("e2e_s", now - self._began)
        meter.observe("queue_s", result.timings.queue_s)
        meter.observe("prefill_s", result.timings.prefill_s)
        meter.observe("decode_s", result.timings.decode_s)
        meter.observe("prompt_tokens", self._num_prompt_tokens)
        meter.observe("output_tokens", self._num_tokens[index])
        meter.count("prefix_queries", len(result.prompt))
        meter.count("prefix_hits", result.num_cached_tokens)


def add(snapshots: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The snapshots of several processes as if one had seen all of it."""
    whole: dict[str, Any] = Meter().snapshot()
    for one in snapshots:
        whole["open"] += one["open"]
        _add_numbers(whole["totals"], one["totals"])
        _add_numbers(whole["finishes"], one["finishes"])
        for name, histogram in one["histograms"].items():
            mine = whole["histograms"][name]
            mine["counts"] = [
                a + b for a, b in zip(mine["counts"], histogram["counts"], strict=True)
            ]
            mine["sum"] += histogram["sum"]
        for name, values in one["recent"].items():
            whole["recent"][name].extend(values)
        for second, counts in one["seconds"].items():
            _add_numbers(whole["seconds"].setdefault(second, {}), counts)
    return whole


def _add_numbers(mine: dict[str, Any], other: Mapping[str, Any]) -> None:
    for name, number in other.items():
        mine[name] = mine.get(name, 0) + number
