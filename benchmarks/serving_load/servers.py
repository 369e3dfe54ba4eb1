"""Starts servers as processes of their own, waits until they answer, and ends them.

Knows how each kind is started, and nothing of what is asked of it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from qeff.apps.load.client import Address, ConnectionLost, fetch_json

START_S = 180.0
STOP_S = 60.0
PAUSE_S = 0.005  # between two looks at whether it answers


@dataclass(frozen=True)
class Kind:
    """A server: its name, and its command line without an address."""

    name: str
    words: tuple[str, ...]


def ours(container: Path, threads: int, *more: str) -> Kind:
    """``qeff serve`` over a container."""
    words = (sys.executable, "-m", "qeff", "serve", str(container), "--threads", str(threads))
    return Kind("qeff serve", (*words, "--log-format", "none", *more))


def llama_cpp(python: str, gguf: Path, threads: int, ctx_len: int) -> Kind:
    """``llama_cpp.server``: requests do not interrupt each other, logits of the last token only."""
    words = [python, "-m", "llama_cpp.server", "--model", str(gguf), "--n_ctx", str(ctx_len)]
    words += ["--n_threads", str(threads), "--n_threads_batch", str(threads)]
    words += ["--interrupt_requests", "false", "--logits_all", "false", "--verbose", "false"]
    return Kind("llama_cpp.server", tuple(words))


class Server:
    """A process that serves; ends with the block."""

    def __init__(self, kind: Kind, log: Path, port: int | None = None) -> None:
        self.kind, self.log = kind, log
        self.address = Address("127.0.0.1", port or free_port())
        self.process = self._start()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _start(self) -> subprocess.Popen[bytes]:
        words = [*self.kind.words, "--host", "127.0.0.1", "--port", str(self.address.port)]
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                words,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=as_installed(self.log.parent / "bytecode"),
            )
        try:
            self.start_s = _wait(self.address, process, self.log)
        except BaseException:
            process.kill()
            process.wait()
            raise
        return process

    def restart(self) -> None:
        """Start again at the same address."""
        assert self.process.poll() is not None, "it runs"
        self.process = self._start()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return -signal.SIGKILL

    def rss_bytes(self) -> int:
        """The memory that the process holds."""
        return rss_bytes(self.process.pid)


def as_installed(folder: Path) -> dict[str, str]:
    """The environment of a package that pip installed: with bytecode, from the second start on."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(folder.resolve())}


def rss_bytes(pid: int | None = None) -> int:
    """The memory that a process holds; this one's when None."""
    pages = int(Path(f"/proc/{pid or os.getpid()}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _wait(address: Address, process: subprocess.Popen[bytes], log: Path) -> float:
    """Wait for the first answer; the seconds it took."""
    began = time.monotonic()
    while True:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}:\n{tail(log)}")
        if time.monotonic() - began > START_S:
            raise RuntimeError(f"the server did not start:\n{tail(log)}")
        try:
            status, _ = asyncio.run(fetch_json(address, "GET", "/v1/models"))
        except ConnectionLost:
            status = 0
        if status == 200:
            return time.monotonic() - began
        time.sleep(PAUSE_S)


def tail(log: Path, lines: int = 15) -> str:
    """The end of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
