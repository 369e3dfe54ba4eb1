"""Several processes that serve one address, each with the same mapped weights.

The parent starts them, starts one again that died, and passes signals on; it serves nothing itself.
The system spreads connections over them. A replica without its parent drains.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from qeff.apps.server.config import ServerConfig
from qeff.apps.server.models import Entry, Models
from qeff.apps.server.replica import Replica
from qeff.apps.server.run import BACKLOG, bind, listen, make_state, raise_file_limit, url_at
from qeff.apps.server.run import run as run_one
from qeff.apps.terminal.border import guarded
from qeff.core.progress import log

SETTLED_S = 10.0  # a replica that lived this long did not die of how it was started
MAX_QUICK_DEATHS = 5
SIGNALS = (signal.SIGTERM, signal.SIGINT)

Say = Callable[[str], None]


def run(config: ServerConfig, find: Callable[[], tuple[list[Entry], int]], say: Say) -> int:
    """Listen, find the models, and serve them until told to stop."""
    with listen(config) as listener:
        entries, num_sequences = find()
        if config.replicas == 1:
            return run_one(make_state(config, entries, num_sequences), listener, say)
        host, port = listener.getsockname()[:2]
    own = share(config, port)
    Models(entries, own.memory_limit).check()
    with bind(host, port, is_shared=True), TemporaryDirectory(prefix="qeff-") as folder:
        threads = threads_each([len(os.sched_getaffinity(0))], config.replicas)
        plan = Plan(own, with_threads(entries, threads), num_sequences, folder)
        plan_say = f"serving {entries[0].name} at {url_at(host, port)}"
        return Parent(plan, lambda: say(f"{plan_say} by {config.replicas} processes")).run()


@dataclass(frozen=True, slots=True)
class Plan:
    """What every replica is started with.

    Args:
        config: Its share of the limits.
        entries: Its models.
        num_sequences: Sequences that its engine runs.
        folder: Where the replicas' own sockets are.
    """

    config: ServerConfig
    entries: Sequence[Entry]
    num_sequences: int
    folder: str

    def place(self, number: int) -> Path:
        """The socket by which a replica tells its numbers."""
        return Path(self.folder) / f"{number}.sock"

    def serve(self, number: int, lifeline: int, ready: int) -> int:
        """Be a replica; ``lifeline`` ends with the parent, ``ready`` is told when it is up."""
        config = self.config
        others = [self.place(other) for other in range(config.replicas) if other != number]
        state = make_state(config, self.entries, self.num_sequences)
        replica = Replica(
            state, self.place(number), others, lifeline, lambda: os.write(ready, b".")
        )
        with bind(config.host, config.port, is_shared=True) as listener:
            listener.listen(BACKLOG)
            return replica.run_at(listener)


class Parent:
    """Keeps the replicas running."""

    def __init__(self, plan: Plan, announce: Callable[[], None]) -> None:
        self._plan = plan
        self._announce = announce
        self._numbers: dict[int, int] = {}  # by process id
        self._began: dict[int, float] = {}
        self._num_quick_deaths = 0
        self._num_up = 0
        self._is_ending = False
        self._lifeline, self._life = os.pipe()
        self._ready, self._is_up = os.pipe()

    def run(self) -> int:
        """Start all, and wait until they were told to end; 0 when all of them ended well."""
        raise_file_limit()
        gc.freeze()  # what is loaded is shared with the replicas as long as nobody touches it
        for one in SIGNALS:
            signal.signal(one, self._pass_on)
        for number in range(self._plan.config.replicas):
            self._start(number)
        worst = 0
        while self._numbers:
            pid, status = self._wait()
            if pid:
                worst = self._note_end(pid, os.waitstatus_to_exitcode(status)) or worst
        return worst

    def _start(self, number: int) -> None:
        # Signals wait until the process is known, so that it gets them too.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        pid = os.fork()
        if pid == 0:
            os._exit(guarded(lambda: self._be(number), verbose=False))
        self._numbers[pid] = number
        self._began[pid] = time.monotonic()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def _be(self, number: int) -> int:
        for one in SIGNALS:
            signal.signal(one, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        os.close(self._life)
        os.close(self._ready)
        return self._plan.serve(number, self._lifeline, self._is_up)

    def _wait(self) -> tuple[int, int]:
        """A process that ended and its status; 0 where the replicas are still coming up."""
        if self._num_up >= self._plan.config.replicas:
            return os.wait()
        self._num_up += _read_soon(self._ready)
        if self._num_up >= self._plan.config.replicas:
            self._announce()
        return os.waitpid(-1, os.WNOHANG)

    def _note_end(self, pid: int, code: int) -> int:
        """Start a replica again that should not have ended; what the parent's exit code gets."""
        number = self._numbers.pop(pid)
        lived = time.monotonic() - self._began.pop(pid)
        if self._is_ending:
            return 0 if code == -signal.SIGTERM else abs(code)  # it was not up yet
        log.warning("replica %d ended with %d after %.0f seconds", number, code, lived)
        self._num_quick_deaths = self._num_quick_deaths + 1 if lived < SETTLED_S else 0
        if self._num_quick_deaths < MAX_QUICK_DEATHS:
            self._start(number)
            return 0
        log.error("replicas die as soon as they are started; giving up")
        self._pass_on(signal.SIGTERM, None)
        return abs(code) or 1

    def _pass_on(self, number: int, frame: object) -> None:
        self._is_ending = True
        for pid in list(self._numbers):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue  # it has ended by itself


def _read_soon(pipe: int) -> int:
    """How many replicas reported within a moment."""
    found, _, _ = select.select([pipe], [], [], 0.1)
    return len(os.read(pipe, 64)) if found else 0


def share(config: ServerConfig, port: int) -> ServerConfig:
    """One replica's part of what the whole server may take."""
    limit = config.memory_limit
    return replace(
        config,
        port=port,
        max_waiting=-(-config.max_waiting // config.replicas),
        memory_limit=None if limit is None else limit // config.replicas,
    )


def threads_each(processors: Sequence[int], count: int) -> int:
    """The most threads that so many replicas can all have on machines of so many processors."""
    for threads in range(max(processors), 1, -1):
        if sum(own // threads for own in processors) >= count:
            return threads
    return 1


def with_threads(entries: Sequence[Entry], threads: int) -> list[Entry]:
    """The same models with this replica's part of the processors, where nobody said how many."""
    return [
        one
        if one.setup.threads is not None
        else replace(one, setup=replace(one.setup, threads=threads))
        for one in entries
    ]
