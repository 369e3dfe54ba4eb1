"""A running server over a tiny model, for all tests of this room."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from browsing import driver, page_app, page_url, reader  # noqa: F401 (as those below)
from tooled import talker_containers, talkers  # noqa: F401 (fixtures of several test files)

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

import httpx2 as httpx

CTX_LEN = 256
NUM_SEQUENCES = 8
NAME = "tiny"
PLAIN = False  # nothing is encrypted, and reading certificates takes longer than a request


@dataclass(frozen=True)
class Running:
    """A server in a thread of this process.

    ``state`` may be looked at from tests; only the server's own thread may change it.
    """

    url: str
    state: Any
    server: Any

    def client(self, **more: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=30, verify=PLAIN, **more)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=30, verify=PLAIN)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=30, verify=PLAIN)

    def wait_until(self, holds: Callable[[dict[str, Any]], bool], seconds: float = 10) -> None:
        """Look at /stats until something holds of it."""
        ends = time.monotonic() + seconds
        while not holds(found := self.get("/stats").json()):
            assert time.monotonic() < ends, f"never held: {found}"
            time.sleep(0.02)


def _make_model() -> Callable[[Path], Path]:
    """The tiny model of the apps' tests; two conftests cannot import each other by name."""
    path = Path(__file__).parents[1] / "apps" / "conftest.py"
    spec = importlib.util.spec_from_file_location("tiny_model", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    make: Callable[[Path], Path] = module.make_model
    return make


@pytest.fixture(scope="session")
def server_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache root for all servers of the tests."""
    return tmp_path_factory.mktemp("server-cache")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of the tiny model."""
    return _make_model()(tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture(scope="session")
def container(tiny_folder: Path, server_home: Path) -> Path:
    """The tiny model, compiled for several sequences."""
    from qeff.apps.pipeline import build
    from qeff.core.options import CompileOptions, ExportOptions

    options = CompileOptions(
        precision="fp32", ctx_len=CTX_LEN, prefill_seq_len=64, full_batch_size=NUM_SEQUENCES
    )
    out = server_home / "container"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QEFF_HOME", str(server_home))
        return build(tiny_folder, ExportOptions(continuous_batching=True), options, out=out)


@contextmanager
def running(containers: dict[str, Path], **options: Any) -> Iterator[Running]:
    """A server over containers by name; options are those of ServerConfig."""
    from qeff.apps.opening import Setup
    from qeff.apps.server.config import ServerConfig
    from qeff.apps.server.models import Entry
    from qeff.apps.server.run import Server, listen, make_state, url_of

    config = ServerConfig(**{"port": 0, "log_format": "none", **options})
    entries = [
        Entry(name=name, path=path, ctx_len=CTX_LEN, setup=Setup(threads=1))
        for name, path in containers.items()
    ]
    state = make_state(config, entries, NUM_SEQUENCES)
    listener = listen(config)
    is_up = threading.Event()
    server = Server(state, is_up.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    assert is_up.wait(30), "the server did not start"
    try:
        yield Running(url_of(listener), state, server)
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()
        assert not thread.is_alive(), "the server did not end"


@pytest.fixture(scope="session")
def server(container: Path) -> Iterator[Running]:
    """A server that all tests of a session share; leave it as it was."""
    with running({NAME: container}) as one:
        yield one


@pytest.fixture(scope="session")
def run_server(container: Path) -> Callable[..., Any]:
    """Starts a server of one's own: ``with run_server(max_waiting=0) as server``."""

    def start(containers: dict[str, Path] | None = None, **options: Any) -> Any:
        return running(containers or {NAME: container}, **options)

    return start
