"""Runs a server: listens, opens the default model, says where it is, and drains when told to stop.

On SIGTERM or SIGINT nothing more is let in, what runs may finish for a while, and the process ends
with 0; a second signal ends it at once. Knows nothing of routes.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import resource
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import uvicorn

from qeff.apps.server.access import check_address, read_keys
from qeff.apps.server.admission import Admission
from qeff.apps.server.config import ServerConfig
from qeff.apps.server.connection import Connection
from qeff.apps.server.entrance import Entrance
from qeff.apps.server.journal import Journal
from qeff.apps.server.models import Entry, Models
from qeff.apps.server.state import State
from qeff.core.errors import OptionValueError
from qeff.core.progress import log

BACKLOG = 2048
GRACE_S = 5  # for what is written but not read yet, when the answers are done


def make_state(config: ServerConfig, entries: Sequence[Entry], num_sequences: int) -> State:
    """The state of a server whose engines run so many sequences at the same time."""
    journal = Journal(config.log_format, config.log_prompts)
    models = Models(entries, config.memory_limit, journal)
    return State(config, models, Admission(num_sequences, config.max_waiting), journal)


def listen(config: ServerConfig) -> socket.socket:
    """The socket of a server; refuses an address that everybody could reach without a key."""
    has_keys = bool(read_keys(config.api_key, config.api_key_file))
    check_address(config.host, has_keys, config.allow_no_key)
    listener = bind(config.host, config.port)
    listener.listen(BACKLOG)
    return listener


def bind(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    """A socket at an address; other processes of this user may bind a shared one too."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if is_shared:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise OptionValueError(
            f"cannot listen on {host} port {port}: {error.strerror or error}",
            "choose another --port, or end the program that has it",
        ) from error
    bound.setblocking(False)
    return bound


def url_of(listener: socket.socket) -> str:
    """Where clients find a socket."""
    host, port = listener.getsockname()[:2]
    return url_at(host, port)


def url_at(host: str, port: int) -> str:
    """The URL of an address."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(state: State, listener: socket.socket, say: Callable[[str], None]) -> int:
    """Serve until told to stop; ``say`` gets the line that tells where."""
    state.models.check()
    raise_file_limit()
    server = Server(state, lambda: say(f"serving {state.models.default} at {url_of(listener)}"))
    return server.run_at(listener)


def raise_file_limit() -> None:
    """Every connection is a file; take as many as the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def shut(state: State) -> None:
    """Let nothing in any more."""
    state.admission.drain()
    state.journal.write("draining", inside=state.admission.num_inside)


async def finish(state: State) -> None:
    """Wait for what runs, and end it when that takes too long."""
    seconds = state.config.drain_seconds
    try:
        async with asyncio.timeout(seconds):
            await state.admission.empty()
    except TimeoutError:
        log.warning("requests still ran after %g seconds and were ended", seconds)
        await state.models.close()  # their clients are told


class Server(uvicorn.Server):
    """Uvicorn with a drain before its end."""

    def __init__(self, state: State, announce: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                Entrance(state),
                http=Connection,
                loop="uvloop",
                lifespan="on",  # what goes wrong at the start ends the server
                ws="none",
                log_config=None,
                log_level="error",  # what others send that is no HTTP is no news
                access_log=False,
                server_header=False,
                date_header=True,
                timeout_keep_alive=math.ceil(state.config.keep_alive),
                timeout_graceful_shutdown=GRACE_S,
            )
        )
        self._state = state
        self._announce = announce
        self._draining: asyncio.Task[None] | None = None

    def run_at(self, listener: socket.socket) -> int:
        """Serve a socket until told to stop; the exit code of the process."""
        self.run(sockets=[listener])
        return 0 if self.started else 1

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open, listen, and say so."""
        await super().startup(sockets=sockets)
        gc.freeze()  # what was loaded stays: no collection need look at it
        gc.enable()
        if self.started:
            self._state.is_ready = True
            self._announce()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Drain on the first signal, end on the second."""
        loop = asyncio.get_running_loop()
        try:
            for one in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(one, self.drain)
        except (ValueError, RuntimeError):
            yield  # not in the main thread: whoever started it ends it
            return
        try:
            yield
        finally:
            for one in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(one)

    def drain(self) -> None:
        """Let nothing in any more, and end when what runs is done."""
        if self._state.admission.is_draining:
            logging.getLogger("uvicorn.error").disabled = True  # it would tell of what is cut off
            self.should_exit = self.force_exit = True
            return
        shut(self._state)
        self._draining = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        await finish(self._state)
        self.should_exit = True
