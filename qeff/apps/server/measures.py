"""All numbers of a server at one moment, as plain values: meters, engines, the queue.

A gathering can be sent to another process and put together with that of other replicas. Asks
engines between two steps, and takes their last answer where a step is long.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from qeff.apps.server import meters
from qeff.apps.server.admission import Admission
from qeff.apps.server.models import Models
from qeff.apps.server.served import Served
from qeff.generate.runner import Stats

PATIENCE_S = 0.5  # how long an answer may wait for a step to end
SAMPLE_S = 1.0
LEVELS = ("running", "waiting", "cache_use")


class Gauges:
    """The last known state of each engine."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Served, Stats]] = {}
        self._asking: dict[str, asyncio.Task[Stats]] = {}

    async def read(self, served: Served) -> Stats | None:
        """An engine's state, fresh if it answers soon; None when it never has."""
        task = self._asking.get(served.name)
        if task is None or task.done():
            task = asyncio.create_task(served.stats())
            self._asking[served.name] = task
        await asyncio.wait({task}, timeout=PATIENCE_S)
        if task.done() and not task.cancelled() and task.exception() is None:
            self._known[served.name] = served, task.result()
        known = self._known.get(served.name)
        return known[1] if known is not None and known[0] is served else None


async def gather(models: Models, admission: Admission, gauges: Gauges) -> dict[str, Any]:
    """The numbers of this process."""
    opened = {served.name: served for served in models.opened()}
    each: dict[str, Any] = {}
    for name in models.names():
        served = opened.get(name)
        stats = await gauges.read(served) if served is not None else None
        each[name] = {
            "meter": models.meter(name).snapshot(),
            "totals": asdict(models.totals(name).with_engine(stats)),
            "engine": _engine(stats, served),
        }
    return {
        "models": each,
        "refused": admission.num_refused,
        "inside": admission.num_inside,
        "draining": admission.is_draining,
        "replicas": 1,
    }


def add(gathered: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The numbers of several processes together."""
    parts = list(gathered)
    names = list(parts[0]["models"])
    whole: dict[str, Any] = {
        "refused": sum(part["refused"] for part in parts),
        "inside": sum(part["inside"] for part in parts),
        "draining": any(part["draining"] for part in parts),
        "replicas": sum(part["replicas"] for part in parts),
        "models": {},
    }
    for name in names:
        each = [part["models"][name] for part in parts if name in part["models"]]
        whole["models"][name] = {
            "meter": meters.add(one["meter"] for one in each),
            "totals": summed(one["totals"] for one in each),
            "engine": summed(one["engine"] for one in each),
        }
    return whole


def cache_use(engine: Mapping[str, float]) -> float:
    """The part of the cache that running sequences hold."""
    return engine["used_blocks"] / engine["blocks"] if engine["blocks"] else 0.0


async def sample(models: Models, gauges: Gauges) -> None:
    """Once a second, note how full the engines are; runs until it is cancelled."""
    while True:
        for served in models.opened():
            stats = await gauges.read(served)
            engine = _engine(stats, served)
            levels = engine["running"], engine["waiting"], cache_use(engine)
            for name, value in zip(LEVELS, levels, strict=True):
                served.meter.level(name, value)
        await asyncio.sleep(SAMPLE_S - time.time() % SAMPLE_S)


def _engine(stats: Stats | None, served: Served | None) -> dict[str, float]:
    if stats is None or served is None:
        return {"running": 0, "waiting": 0, "blocks": 0, "used_blocks": 0, "open": 0}
    return {
        "running": stats.num_running,
        "waiting": stats.num_waiting,
        "blocks": served.num_blocks,
        "used_blocks": served.num_blocks - stats.num_free_blocks,
        "open": 1,
    }


def summed(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Mappings of numbers added up by name."""
    whole: dict[str, Any] = {}
    for part in parts:
        for name, number in part.items():
            whole[name] = whole.get(name, 0) + number
    return whole
