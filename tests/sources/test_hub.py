"""The hub, played by a small server, a closed door, and one that opens and says nothing."""

from __future__ import annotations

import hashlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": save({"w": np.arange(5, dtype=np.float32)}),
    "pytorch_model.bin": b"never",
    "modeling.py": b"x = 1",
    "onnx/config.json": b"{}",
}
PROGRAM = """
import json, sys
from qeff.core.errors import QeffError
from qeff.sources import locate
events = []
try:
    found = locate(sys.argv[1], revision=sys.argv[2] or None, progress=events.append)
    answer = {"folder": str(found.folder), "name": found.name,
              "files": sorted(path.name for path in found.folder.rglob("*.*"))}
except QeffError as error:
    answer = {"error": type(error).__name__, "what": error.what, "hint": error.hint}
answer["done"] = max([event.done for event in events], default=0)
answer["heavy"] = sorted({"torch", "transformers", "gguf"} & set(sys.modules))
print(json.dumps(answer))
"""


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's interface as a download asks for."""

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path.startswith("/api/models/org/secret"):
            return self.answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
        if not path.startswith(("/api/models/org/tiny", "/org/tiny")):
            return self.answer(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        if "/revision/none" in path:
            return self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        if "/tree/" in path:
            rows = [
                {"type": "file", "path": name, "size": len(data), "oid": etag(data)}
                for name, data in FILES.items()
            ]
            return self.answer(200, json.dumps(rows).encode(), {})
        if path.startswith("/api/"):
            siblings = [{"rfilename": name} for name in FILES]
            info = {"id": "org/tiny", "sha": COMMIT, "siblings": siblings}
            return self.answer(200, json.dumps(info).encode(), {})
        data = FILES[path.split(f"/resolve/{COMMIT}/")[1]]
        return self.answer(200, data, {"ETag": f'"{etag(data)}"', "X-Repo-Commit": COMMIT})

    def answer(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        headers = {"Content-Type": "application/json", "Content-Length": str(len(data))} | headers
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)


def etag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def ask(tmp_path: Path, endpoint: str, ref: str, revision: str = "", **env: str) -> dict[str, Any]:
    """What ``locate`` answers in a process of its own: the hub client reads its address once."""
    root = Path(__file__).parents[2]
    settings = {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(tmp_path / "hf"),
        "QEFF_HOME": str(tmp_path / "qeff"),
        "QEFF_HUB_TIMEOUT": "3",
        "HF_HUB_DISABLE_XET": "1",
        "PYTHONPATH": str(root),
        "PATH": "",
        "HOME": str(tmp_path),
        **env,
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, ref, revision],
        capture_output=True, text=True, env=settings, timeout=60, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_download_then_no_network(tmp_path, hub):
    first = ask(tmp_path, hub, "org/tiny")
    assert first["name"] == "tiny"
    assert first["files"] == ["config.json", "model.safetensors"]
    assert (Path(first["folder"]) / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert first["heavy"] == []
    again = ask(tmp_path, "http://127.0.0.1:1", "org/tiny")
    assert again["folder"] == first["folder"]
    offline = ask(tmp_path, hub, "org/tiny", HF_HUB_OFFLINE="1")
    assert offline["folder"] == first["folder"]


def test_progress_tells_of_bytes(tmp_path, hub):
    assert ask(tmp_path, hub, "org/tiny")["done"] > 0


def test_a_snapshot_without_its_weights_is_fetched_again(tmp_path, hub):
    first = ask(tmp_path, hub, "org/tiny")
    (Path(first["folder"]) / "model.safetensors").unlink()
    again = ask(tmp_path, hub, "org/tiny")
    assert again["files"] == ["config.json", "model.safetensors"]


@pytest.mark.parametrize(
    ("ref", "revision", "words"),
    [
        ("org/absent", "", "neither a local folder nor a model on the hub"),
        ("org/secret", "", "gated"),
        ("org/tiny", "none", "no revision 'none'"),
    ],
)
def test_what_the_hub_does_not_give(tmp_path, hub, ref, revision, words):
    answer = ask(tmp_path, hub, ref, revision)
    assert answer["error"] == "SourceError"
    assert words in answer["what"]
    assert answer["hint"]


def test_offline_mode(tmp_path):
    answer = ask(tmp_path, "http://127.0.0.1:1", "org/tiny", HF_HUB_OFFLINE="1")
    assert answer["error"] == "HubUnreachable"
    assert "HF_HUB_OFFLINE" in answer["what"]


def test_refused_connection(tmp_path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    answer = ask(tmp_path, f"http://127.0.0.1:{port}", "org/tiny")
    assert answer["error"] == "HubUnreachable"
    assert "built-in" in answer["hint"]


def test_a_hub_that_never_answers_is_noticed_within_seconds(tmp_path):
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen(8)
        started = time.monotonic()
        answer = ask(tmp_path, f"http://127.0.0.1:{mute.getsockname()[1]}", "org/tiny")
        took = time.monotonic() - started
    assert answer["error"] == "HubUnreachable"
    assert took < 20, f"it took {took:.1f} s with a limit of 3 s"
