"""One of several processes of a server: tells the others its numbers, and lives with its parent.

Numbers go over sockets in a folder that only this user can open, as one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from qeff.apps.server.measures import gather
from qeff.apps.server.run import Server
from qeff.apps.server.state import State

PATIENCE_S = 1.0
MAX_BYTES = 64 * 2**20


class Replica(Server):
    """A server among equals.

    Args:
        state: Its own state.
        place: The socket by which it tells its numbers.
        others: Those of the other replicas.
        lifeline: A pipe that ends with the parent.
        announce: Called when it is up.
    """

    def __init__(
        self,
        state: State,
        place: Path,
        others: Sequence[Path],
        lifeline: int,
        announce: Callable[[], Any],
    ) -> None:
        super().__init__(state, announce)
        self._place = place
        self._others = others
        self._lifeline = lifeline
        self._telling: asyncio.Server | None = None
        self._is_orphan = False
        state.siblings = self._ask_others

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open, listen, and be there for the others."""
        self._place.unlink(missing_ok=True)
        self._telling = await asyncio.start_unix_server(self._tell, self._place)
        asyncio.get_running_loop().add_reader(self._lifeline, self._on_parent_gone)
        await super().startup(sockets=sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End, and tell no more."""
        asyncio.get_running_loop().remove_reader(self._lifeline)
        if self._telling is not None:
            self._telling.close()
        await super().shutdown(sockets=sockets)
        if self._is_orphan:  # nobody else is left to clear up; the last one takes the folder away
            self._place.unlink(missing_ok=True)
            with suppress(OSError):
                self._place.parent.rmdir()

    def _on_parent_gone(self) -> None:
        asyncio.get_running_loop().remove_reader(self._lifeline)
        self._is_orphan = True
        if not self._state.admission.is_draining:
            self.drain()

    async def _tell(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        state = self._state
        own = await gather(state.models, state.admission, state.gauges)
        writer.write(json.dumps(own).encode() + b"\n")
        await writer.drain()
        writer.close()

    async def _ask_others(self) -> list[dict[str, Any]]:
        answers = await asyncio.gather(*map(_ask, self._others))
        return [answer for answer in answers if answer is not None]


async def _ask(place: Path) -> dict[str, Any] | None:
    """The numbers of another replica; None when it is just not there."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_unix_connection(place, limit=MAX_BYTES)
            try:
                line = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
    if not line.endswith(b"\n"):
        return None
    answer: dict[str, Any] = json.loads(line)
    return answer
