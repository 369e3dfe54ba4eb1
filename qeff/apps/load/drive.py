"""A whole load: the warm-up, then requests at a rate, or so many at a time, or both.

Gives the records of all requests and how long they took together. Knows nothing of what is printed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import numpy as np

from qeff.apps.load.client import fetch_json
from qeff.apps.load.lengths import arrivals
from qeff.apps.load.prompts import Ask
from qeff.apps.load.record import Record
from qeff.apps.load.sending import Target, send
from qeff.core.errors import RequestError, ResourceError
from qeff.core.progress import Event, Progress, silent


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """When requests are sent: at ``rate`` a second, at most ``concurrency`` running; None: any."""

    rate: float | None = None
    burstiness: float = 1.0
    concurrency: int | None = None
    seed: int = 0


async def drive(
    target: Target, asks: Sequence[Ask], pace: Pace, *, progress: Progress = silent
) -> tuple[list[Record], float]:
    """Send everything; records in the order of the prompts, and the seconds from first to last."""
    times = [0.0] * len(asks)
    if pace.rate is not None:
        generator = np.random.default_rng(pace.seed)
        times = arrivals(generator, len(asks), pace.rate, pace.burstiness)
    door = asyncio.Semaphore(pace.concurrency) if pace.concurrency is not None else None
    num_done = 0
    began = time.perf_counter()

    async def one(ask: Ask, at: float) -> Record:
        nonlocal num_done
        await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
        async with AsyncExitStack() as held:
            if door is not None:
                await held.enter_async_context(door)
            record = await send(target, ask)
        num_done += 1
        progress(Event("requests", num_done, len(asks), "requests"))
        return record

    progress(Event("requests", 0, len(asks), "requests"))
    records = await asyncio.gather(*map(one, asks, times))
    return list(records), time.perf_counter() - began


async def warm_up(target: Target, ask: Ask) -> None:
    """One request whose time does not count; its failure ends the run before it began."""
    record = await send(target, ask)
    if record.error is not None:
        raise ResourceError(
            f"the warm-up request failed: {record.error}",
            f"is an OpenAI-compatible server at {target.address}?",
        )


async def first_model(target: Target) -> str:
    """The first model that the server names."""
    status, body = await fetch_json(target.address, "GET", "/v1/models", headers=target.headers)
    models = body.get("data") if status == 200 and isinstance(body, dict) else None
    if not models:
        raise RequestError(
            f"{target.address}/v1/models names no model (status {status})",
            "give --model, and --api-key where the server wants one",
        )
    return str(models[0]["id"])
