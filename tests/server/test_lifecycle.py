"""``qeff serve`` as a process: from its start to a drained end, and with replicas."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2 as httpx
import pytest

LONG = {"prompt": "my name is", "max_tokens": 240, "ignore_eos": True, "temperature": 0}


class Process:
    """A server in a process of its own."""

    def __init__(self, popen: subprocess.Popen, url: str, lines: list[str]) -> None:
        self.popen = popen
        self.url = url
        self.lines = lines

    def post(self, path: str, **body) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=60)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=10)

    def end(self, seconds: float = 30) -> int:
        self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(seconds)


@contextmanager
def process(model: Path, home: Path, *words: str) -> Iterator[Process]:
    environment = {
        **os.environ,
        "QEFF_HOME": str(home),
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
    }
    command = [sys.executable, "-m", "qeff", "serve", str(model), "--port", "0", "--threads", "1"]
    popen = subprocess.Popen([*command, *words], env=environment, stderr=subprocess.PIPE, text=True)
    lines: list[str] = []
    assert popen.stderr is not None
    for line in popen.stderr:
        lines.append(line)
        if found := re.search(r"at (http://\S+)", line):
            break
    else:
        raise AssertionError(f"it did not start: {lines}")
    reader = threading.Thread(target=lambda: lines.extend(popen.stderr), daemon=True)
    reader.start()
    try:
        yield Process(popen, found[1], lines)
    finally:
        popen.kill()
        popen.wait()
        reader.join()
        popen.stderr.close()


def stream(url: str, kept: list[str], **body) -> threading.Thread:
    """Read a stream in a thread; ``kept`` gets its lines."""

    def read() -> None:
        with (
            suppress(httpx.RemoteProtocolError),  # what was kept shows that it was cut off
            httpx.stream("POST", url + "/v1/completions", json=body, timeout=60) as answer,
        ):
            kept.extend(line for line in answer.iter_lines() if line)

    thread = threading.Thread(target=read)
    thread.start()
    while not kept:
        assert thread.is_alive(), "the stream ended before it began"
        time.sleep(0.01)
    return thread


def test_it_drains_and_ends_with_0(container, server_home) -> None:
    with process(container, server_home, "--log-format", "json") as one:
        assert one.get("/ready").status_code == 200
        kept: list[list[str]] = [[], [], []]
        many = {**LONG, "prompt": ["my name is"] * 30, "stream": True}
        threads = [stream(one.url, each, **many) for each in kept]
        one.popen.send_signal(signal.SIGTERM)
        codes = set()
        try:
            for _ in range(20):
                codes.add(
                    (one.get("/ready").status_code, one.post("/v1/completions", **LONG).status_code)
                )
                if codes == {(503, 503)}:
                    refused = one.post("/v1/completions", **LONG)
                    assert int(refused.headers["retry-after"]) > 0
                    break
        except httpx.HTTPError:
            pass  # it has ended already: what ran was done
        for thread in threads:
            thread.join()
        assert one.popen.wait(20) == 0
        assert [each[-1] for each in kept] == ["data: [DONE]"] * 3, "what ran was finished"
        assert not any("error" in line for each in kept for line in each)
        assert codes <= {(503, 503), (200, 503), (200, 200)}
        assert any('"event": "draining"' in line for line in one.lines)


def test_what_outlasts_the_drain_is_told(container, server_home) -> None:
    with process(container, server_home, "--drain-seconds", "0.05") as one:
        kept: list[str] = []
        many = {**LONG, "prompt": ["my name is"] * 100, "stream": True}
        thread = stream(one.url, kept, **many)
        assert one.end() == 0
        thread.join()
        assert kept[-1] == "data: [DONE]"
        assert "shutting down" in kept[-2]


def test_a_second_signal_ends_it_at_once(container, server_home) -> None:
    with process(container, server_home) as one:
        kept: list[str] = []
        many = {**LONG, "prompt": ["my name is"] * 100, "stream": True}
        thread = stream(one.url, kept, **many)
        one.popen.send_signal(signal.SIGINT)
        time.sleep(0.1)
        assert one.end() == 0
        thread.join()
        assert kept[-1] != "data: [DONE]", "or it was over before the signal"
        assert "Traceback" not in "".join(one.lines)


def test_what_is_no_http_is_not_told(container, server_home) -> None:
    with process(container, server_home, "--log-format", "json") as one:
        host, _, port = one.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port))) as sent:
            sent.sendall(b"\x16\x03\x01 no HTTP\r\n\r\n")
            assert b"400" in sent.recv(4096)
        assert one.end() == 0
        assert not any("Invalid" in line for line in one.lines)


def test_an_idle_server_ends_at_once(container, server_home) -> None:
    with process(container, server_home) as one:
        began = time.monotonic()
        assert one.end() == 0
        assert time.monotonic() - began < 5
        assert "Traceback" not in "".join(one.lines)


def test_a_log_without_prompts(container, server_home) -> None:
    with process(
        container, server_home, "--log-format", "json", "--api-key", "secret-key-1"
    ) as one:
        headers = {"authorization": "Bearer secret-key-1"}
        httpx.post(
            one.url + "/v1/completions",
            json={"prompt": "the flat earth", "ignore_eos": True},
            headers=headers,
        ).raise_for_status()
        assert one.end() == 0
        log = "".join(one.lines)
        assert '"path": "/v1/completions"' in log and '"status": 200' in log
        assert '"output_tokens": 16' in log
        assert "flat earth" not in log and "secret-key" not in log


def test_a_log_with_prompts(container, server_home) -> None:
    with process(container, server_home, "--log-format", "json", "--log-prompts") as one:
        asked = {"prompt": "the flat earth", "max_tokens": 3, "temperature": 0}
        text = one.post("/v1/completions", **asked).json()["choices"][0]["text"]
        assert one.end() == 0
        (line,) = [json.loads(each) for each in one.lines if '"event": "text"' in each]
        assert line["prompt"] == "the flat earth" and line["output"] == text
        assert line["id"].startswith("req_")


def test_a_checkpoint_is_compiled_first(tiny_folder, server_home) -> None:
    words = ("--precision", "fp32", "--full-batch-size", "2", "--served-model-name", "mine")
    with process(tiny_folder, server_home, *words) as one:
        answer = one.post("/v1/completions", model="mine", prompt="my name is", max_tokens=2)
        assert answer.json()["model"] == "mine"
        (card,) = one.get("/v1/models").json()["data"]
        assert card["max_model_len"] == 256, "the model's own, which is less than 4096"
        assert one.end() == 0


# ---- replicas ----------------------------------------------------------------------------------


def children(pid: int) -> list[int]:
    psutil = pytest.importorskip("psutil")
    return [one.pid for one in psutil.Process(pid).children()]


def wait_until(holds, seconds: float = 20) -> None:
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends, "never held"
        time.sleep(0.05)


def num_replicas(one: Process) -> int:
    try:
        return one.get("/stats").json()["replicas"]
    except httpx.HTTPError:
        return 0


def test_replicas_share_an_address_and_their_numbers(container, server_home) -> None:
    with process(container, server_home, "--replicas", "2") as one:
        first = children(one.popen.pid)
        assert len(first) == 2
        for _ in range(12):
            assert one.post("/v1/completions", prompt="my name is", max_tokens=2).status_code == 200
        stats = one.get("/stats").json()
        assert (stats["replicas"], stats["finished"], stats["open"]) == (2, 12, 2)
        assert "qeff:replicas 2" in one.get("/metrics").text

        os.kill(first[0], signal.SIGKILL)
        wait_until(lambda: num_replicas(one) == 2 and len(children(one.popen.pid)) == 2)
        assert set(children(one.popen.pid)) != set(first), "a dead one is started again"
        assert one.post("/v1/completions", prompt="my name is", max_tokens=2).status_code == 200
        assert one.end() == 0


def test_replicas_end_with_their_parent(container, server_home, tmp_path, monkeypatch) -> None:
    psutil = pytest.importorskip("psutil")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with process(container, server_home, "--replicas", "2") as one:
        both = children(one.popen.pid)
        assert len(both) == 2 and list(tmp_path.iterdir()), "their sockets are here"
        one.popen.kill()
        one.popen.wait()
        wait_until(lambda: not any(psutil.pid_exists(pid) for pid in both))
        assert not list(tmp_path.iterdir())
