"""Many connections at once: streams that wait without a word, and a long queue behind them.

Streams of a high priority keep the engine busy, so that all others wait. When everybody is there
they are let go, and the others have their turn. A process of its own asks for /health all the time.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from qeff.apps.load.client import Address
from qeff.apps.load.prompts import Ask
from qeff.apps.load.record import Record
from qeff.apps.load.sending import Target, send
from serving_load.findings import Finding, read_metrics

HEALTH_S = 0.1
GROUP, PAUSE_S = 5, 0.05  # so many connections are opened at a time: 100 a second
WAIT_S = 60.0  # for everybody to be there
IDLE_S = 2.0  # how long everybody waits then
CALM_BYTES, EACH_BYTES = 64e6, 100e3  # what memory may grow by, and for each connection

# Asks again and again, and prints when each answer came and how long it took.
WATCH = """
import http.client, sys, time
while True:
    began = time.time()
    one = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]), timeout=60)
    one.request("GET", "/health")
    assert one.getresponse().read()
    one.close()
    print(began, time.time() - began, flush=True)
    time.sleep(0.05)
"""


@dataclass(frozen=True)
class Sizes:
    """How many of everybody; ``num_busy`` is what the engine runs at the same time."""

    num_idle: int
    num_queued: int
    num_busy: int
    busy_tokens: int
    cache_bytes: int = 0  # of the engine's cache, whose memory is taken when it is first used


@asynccontextmanager
async def watching(address: Address) -> AsyncIterator[list[tuple[float, float]]]:
    """Ask for /health inside; afterwards the list has the moment and the seconds of each."""
    words = [sys.executable, "-c", WATCH, address.host, str(address.port)]
    found: list[tuple[float, float]] = []
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield found
        finally:
            process.kill()
            text, _ = await asyncio.to_thread(process.communicate)
            for line in text.splitlines():
                began, seconds = map(float, line.split())
                found.append((began, seconds))


@asynccontextmanager
async def busy(target: Target, sizes: Sizes) -> AsyncIterator[None]:
    """Keep the engine at work with streams that go before all others."""
    first = replace(target, extra={**target.extra, "priority": -9, "ignore_eos": True})

    async def again(number: int) -> None:
        while True:
            record = await send(first, Ask(f"{number} busy", sizes.busy_tokens))
            assert record.error is None, record.error

    # Twice as many as run, so that the next are there when some end.
    tasks = [asyncio.create_task(again(n)) for n in range(2 * sizes.num_busy)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            if not isinstance(end, asyncio.CancelledError):
                raise RuntimeError("a stream that kept the engine busy failed") from end


async def crowd(
    target: Target,
    sizes: Sizes,
    rss_bytes: Callable[[], int],
    *,
    health_s: float = HEALTH_S,
) -> Finding:
    """Nothing is lost, memory is bounded and health is quick."""
    found = Finding(f"{sizes.num_idle} idle event streams and {sizes.num_queued} queued requests")
    late = replace(target, extra={**target.extra, "priority": 9})
    before = rss_bytes()
    async with watching(target.address) as health:
        async with busy(target, sizes):
            idle = await _open(late, sizes.num_idle, 2)
            queued = await _open(target, sizes.num_queued, 8)
            await _wait_for(target.address, sizes.num_idle + sizes.num_queued)
            settled = time.time()
            await asyncio.sleep(IDLE_S)
            num_open = sum(not task.done() for task in (*idle, *queued))
            most = rss_bytes()
        first = await asyncio.gather(*queued)
        second = await asyncio.gather(*idle)
        most = max(most, rss_bytes())
    found.seen["open at the same time"] = num_open
    found.seen["queued answered"] = f"{_whole(first)} of {sizes.num_queued}"
    found.seen["idle answered"] = f"{_whole(second)} of {sizes.num_idle}"
    found.seen["memory before, MB"] = f"{before / 1e6:.0f}"
    found.seen["at most, MB"] = f"{most / 1e6:.0f}"
    found.seen["of it the cache at most, MB"] = f"{sizes.cache_bytes / 1e6:.0f}"
    during = [seconds for began, seconds in health if began >= settled]
    opening = [seconds for began, seconds in health if began < settled]
    found.seen["health at most, ms"] = f"{1e3 * max(during):.1f} of {len(during)}"
    found.seen["while they came, ms"] = f"{1e3 * max(opening):.1f} of {len(opening)}"
    for records in (first, second):
        reasons = sorted({record.error for record in records if record.error})
        found.expect(not reasons, f"requests were lost: {json.dumps(reasons[:3])}")
    everybody = sizes.num_idle + sizes.num_queued
    found.expect(num_open >= 0.9 * everybody, f"only {num_open} waited at the same time")
    allowed = sizes.cache_bytes + CALM_BYTES + EACH_BYTES * everybody
    found.expect(most - before < allowed, f"memory grew by {(most - before) / 1e6:.0f} MB")
    found.expect(max(during) < health_s, f"health took {1e3 * max(during):.0f} ms")
    return found


async def _open(target: Target, count: int, new_tokens: int) -> list[asyncio.Task[Record]]:
    tasks = []
    for number in range(count):
        tasks.append(asyncio.create_task(send(target, Ask(f"{number} waits", new_tokens))))
        if number % GROUP == GROUP - 1:
            await asyncio.sleep(PAUSE_S)
    return tasks


async def _wait_for(address: Address, count: int) -> None:
    """Wait until so many are in the queue."""
    ends = time.monotonic() + WAIT_S
    while time.monotonic() < ends:
        if (await read_metrics(address))["vllm:num_requests_waiting"] >= count:
            return
        await asyncio.sleep(0.1)


def _whole(records: list[Record]) -> int:
    return sum(record.is_whole for record in records)
