"""The models of a server: which there are, and which of them are opened.

A model is opened when it is first asked and stays open. Under a memory limit, the one that was idle
longest is closed for another. Knows nothing of requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from qeff.apps.opening import Setup, open_engine
from qeff.apps.server.errors import SERVER_ERROR, ApiError, unknown_model
from qeff.apps.server.footprint import num_bytes
from qeff.apps.server.journal import Journal
from qeff.apps.server.meters import Meter
from qeff.apps.server.served import Served
from qeff.apps.server.totals import Totals
from qeff.container import Container
from qeff.core.errors import OptionValueError
from qeff.core.progress import log
from qeff.generate import Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A model that can be opened.

    Args:
        name: What clients call it.
        path: Its container.
        ctx_len: Most tokens of a prompt and its output.
        setup: How its engine runs.
    """

    name: str
    path: Path
    ctx_len: int
    setup: Setup = field(default_factory=Setup)


@dataclass(slots=True)
class _Slot:
    """An entry, and the model when it is open."""

    entry: Entry
    meter: Meter
    totals: Totals = field(default_factory=Totals)
    served: Served | None = None
    num_bytes: int = 0
    num_users: int = 0
    used_at: float = 0.0


class Models:
    """All models by name; the first is the default.

    Args:
        entries: At least one.
        memory_limit: Bytes of all opened models together; None is no limit.
        journal: Where the models tell what they are asked.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        memory_limit: int | None = None,
        journal: Journal | None = None,
    ) -> None:
        assert entries, "a server has a model"
        self._slots = {entry.name: _Slot(entry, Meter()) for entry in entries}
        if len(self._slots) < len(entries):
            twice = [entry.name for entry in entries]
            name = next(name for name in twice if twice.count(name) > 1)
            raise OptionValueError(f"two models are called {name!r}", "name one: --model NAME=PATH")
        self._limit = memory_limit
        self._opening = asyncio.Lock()  # one at a time: the room that one makes is not another's
        self._journal = journal or Journal()
        self.default = entries[0].name

    def check(self) -> None:
        """Refuse a limit that one model alone would exceed."""
        if self._limit is None:
            return
        for slot in self._slots.values():
            own = num_bytes(Container.open(slot.entry.path), slot.entry.setup.cache_tokens)
            if own > self._limit:
                raise OptionValueError(
                    f"{slot.entry.name} needs {own} bytes of memory, and the limit is"
                    f" {self._limit}",
                    "raise --memory-limit, or compile with a smaller --ctx-len or"
                    " --full-batch-size",
                )

    def names(self) -> list[str]:
        """The names that clients use, the default first."""
        return list(self._slots)

    def info(self, name: str) -> Entry:
        """The entry of a model; ApiError 404 when there is none of that name."""
        return self._find(name).entry

    def created(self, name: str) -> int:
        """When a model's container was made, in seconds since 1970."""
        path = self._find(name).entry.path
        return int(path.stat().st_mtime) if path.exists() else 0

    def is_open(self, name: str) -> bool:
        """Whether a model is in memory."""
        return self._find(name).served is not None

    def opened(self) -> list[Served]:
        """The models that are in memory."""
        return [slot.served for slot in self._slots.values() if slot.served is not None]

    def meter(self, name: str) -> Meter:
        """The counts of a model, opened or not."""
        return self._find(name).meter

    def totals(self, name: str) -> Totals:
        """What the closed engines of a model have done."""
        return self._find(name).totals

    @asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[Served]:
        """The model of a name, opened if need be; it stays open while it is used."""
        slot = self._find(name)
        slot.num_users += 1
        try:
            if slot.served is None or slot.served.is_broken:
                await asyncio.shield(self._open(slot))
            assert slot.served is not None, "a model in use was closed"
            yield slot.served
        finally:
            slot.num_users -= 1
            slot.used_at = time.monotonic()

    async def close(self) -> None:
        """Close every model."""
        for slot in self._slots.values():
            await self._close(slot)

    def _find(self, name: str | None) -> _Slot:
        slot = self._slots.get(self.default if name is None else name)
        if slot is None:
            raise unknown_model(str(name), self.names())
        return slot

    async def _open(self, slot: _Slot) -> None:
        async with self._opening:
            if slot.served is not None:
                if not slot.served.is_broken:
                    return
                log.error("the engine of %s broke down and is opened again", slot.entry.name)
                await self._close(slot)
            container = await asyncio.to_thread(Container.open, slot.entry.path)
            slot.num_bytes = num_bytes(container, slot.entry.setup.cache_tokens)
            await self._make_room(slot)
            began = time.monotonic()
            self._journal.write("opening", model=slot.entry.name)
            slot.served = await asyncio.to_thread(_open_served, slot, container, self._journal)
            slot.used_at = time.monotonic()
            seconds = round(slot.used_at - began, 3)
            self._journal.write("opened", model=slot.entry.name, seconds=seconds)

    async def _make_room(self, wanted: _Slot) -> None:
        if self._limit is None:
            return
        while self._num_bytes_open() + wanted.num_bytes > self._limit:
            idle = [s for s in self._slots.values() if s.served is not None and not s.num_users]
            if not idle:
                raise ApiError(
                    503,
                    f"There is no memory for {wanted.entry.name!r} while other models are at work.",
                    SERVER_ERROR,
                    code="model_busy",
                    headers={"Retry-After": "5"},
                )
            oldest = min(idle, key=lambda slot: slot.used_at)
            log.info("closing %s for %s", oldest.entry.name, wanted.entry.name)
            await self._close(oldest)

    def _num_bytes_open(self) -> int:
        return sum(slot.num_bytes for slot in self._slots.values() if slot.served is not None)

    async def _close(self, slot: _Slot) -> None:
        served, slot.served = slot.served, None
        if served is not None:
            if not served.is_broken:
                slot.totals.keep(await served.stats())
            await served.close()


def _open_served(slot: _Slot, container: Container, journal: Journal) -> Served:
    text = Text.from_container(container)
    engine = open_engine(container, text, slot.entry.setup)
    created = int(container.path.stat().st_mtime)
    return Served(slot.entry.name, engine, slot.meter, journal, created)
