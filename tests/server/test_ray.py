"""``qeff serve --ray`` on a local cluster: a server of two replicas, from its start to its end."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2 as httpx
import pytest
from test_lifecycle import LONG, Process, process, wait_until

from qeff.apps.cli import serve as command
from qeff.apps.cli.main import main

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="Ray is not installed: pip install 'qeff[ray]'",
)
pytestmark = pytest.mark.xdist_group("ray")  # a cluster is started once, and is heavy

KEY = "a-secret-key"
HEADERS = {"authorization": f"Bearer {KEY}"}
MODEL = "tiny"
MANY = {**LONG, "prompt": ["my name is"] * 30, "stream": True}


@pytest.fixture(scope="module")
def cluster(container: Path, server_home: Path) -> Iterator[Process]:
    """Two replicas behind a key; whatever a failed test leaves behind is ended."""
    psutil = pytest.importorskip("psutil")
    words = ["--ray", "--replicas", "2", "--api-key", KEY, "--served-model-name", MODEL]
    words += ["--max-body-bytes", "100k"]
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        with process(container, server_home, *words) as one:
            family = psutil.Process(one.popen.pid).children(recursive=True)
            try:
                yield one
            finally:
                one.popen.terminate()
                one.popen.wait(60)
                for left in family:
                    if left.is_running():
                        left.kill()


@pytest.fixture(scope="module")
def client(cluster: Process) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=cluster.url, headers=HEADERS, timeout=60) as one:
        yield one


def ask(client: httpx.Client, prompt: str) -> httpx.Response:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 2}
    return client.post("/v1/completions", json=body).raise_for_status()


def stats(client: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/stats").json()
    return found


def metric(client: httpx.Client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    (line,) = [line for line in lines if line.startswith(name)]
    return float(line.rpartition(" ")[2])


# ---- without a cluster -------------------------------------------------------------------------


def test_without_the_extra_it_says_so(container, capsys, monkeypatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "ray" else object())
    assert main(["serve", str(container), "--port", "0", "--ray"]) == 1
    said = capsys.readouterr().err
    assert "ray is not installed" in said and "pip install 'qeff[ray]'" in said


def test_ray_is_not_loaded_by_other_servers() -> None:
    code = "import sys, qeff.apps.cli.serve, qeff.apps.server.replicas; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@needs_ray
def test_a_public_address_wants_a_key(container, capsys) -> None:
    assert main(["serve", str(container), "--port", "0", "--ray", "--host", "0.0.0.0"]) == 2
    assert "no API key" in capsys.readouterr().err


@needs_ray
def test_a_cluster_that_is_not_there(container, capsys, monkeypatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")  # nobody listens there any more
    began = time.monotonic()
    assert main(["serve", str(container), "--port", "0", "--ray"]) == 1
    assert time.monotonic() - began < 20, "Ray itself tries for minutes"
    said = capsys.readouterr().err
    assert f"no Ray cluster at 127.0.0.1:{port}" in said and "RAY_ADDRESS" in said


class Messages:
    """A worker's answer that ends in a death."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self._left = list(messages)
        self.is_cancelled = False

    def __aiter__(self) -> Messages:
        return self

    async def __anext__(self) -> list[dict[str, Any]]:
        from ray.exceptions import ActorDiedError

        if not self._left:
            raise ActorDiedError()
        return [self._left.pop(0)]

    def cancel(self) -> None:
        self.is_cancelled = True


def relayed(path: str, *messages: dict[str, Any]) -> tuple[list[dict[str, Any]], Messages]:
    from qeff.apps.server.ray_cluster.ingress import Relay

    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    answer = Messages(*messages)
    relay = Relay(answer, send, path)
    try:
        asyncio.run(relay.run())
    finally:
        relay.stop()
    return sent, answer


def begun(kind: bytes) -> dict[str, Any]:
    return {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]}


@needs_ray
def test_a_worker_that_dies_is_told_of_in_the_protocols_shape() -> None:
    sent, _ = relayed("/v1/chat/completions")
    assert sent[0]["status"] == 503 and (b"retry-after", b"1") in sent[0]["headers"]
    assert json.loads(sent[1]["body"])["error"]["code"] == "unavailable"
    sent, _ = relayed("/v1/messages")
    assert json.loads(sent[1]["body"])["error"]["type"] == "overloaded_error"


@needs_ray
def test_a_stream_whose_worker_dies_ends_with_an_error() -> None:
    sent, _ = relayed("/v1/completions", begun(b"text/event-stream; charset=utf-8"))
    assert b"ask again" in sent[1]["body"] and sent[1]["body"].endswith(b"data: [DONE]\n\n")
    assert not sent[1].get("more_body", False)


@needs_ray
def test_an_answer_whose_worker_dies_is_cut_off() -> None:
    from qeff.apps.server.errors import ApiError

    with pytest.raises(ApiError):
        relayed("/v1/completions", begun(b"application/json"))


@needs_ray
def test_a_death_after_the_end_is_no_matter() -> None:
    end = {"type": "http.response.body", "body": b"{}"}
    sent, answer = relayed("/v1/completions", begun(b"application/json"), end)
    assert len(sent) == 2 and not answer.is_cancelled


@needs_ray
def test_the_reason_is_the_replicas_own(monkeypatch) -> None:
    from qeff.apps.server.ray_cluster import deploy

    told = "Traceback:\n  File: x\nqeff.core.errors.ResourceError: no room: 5 bytes\n\nhint: more\n"
    found = SimpleNamespace(deployments={"Worker": SimpleNamespace(message=told)})
    known = {"qeff": found}
    monkeypatch.setattr(deploy.serve, "status", lambda: SimpleNamespace(applications=known))
    error = RuntimeError("Deploying failed:\n they are unhealthy \n")
    assert deploy._reason(error) == "no room: 5 bytes"
    known.clear()
    assert deploy._reason(error) == "they are unhealthy"


# ---- on a cluster, in this order ---------------------------------------------------------------


@needs_ray
def test_the_official_client_works(cluster: Process) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{cluster.url}/v1", api_key=KEY, max_retries=0)
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "my name is"}]}
    asked |= {"max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)
    assert text == whole.choices[0].message.content and text
    assert chunks[-1].usage == whole.usage.model_copy(
        update={"prompt_tokens_details": chunks[-1].usage.prompt_tokens_details}
    )
    assert [card.id for card in client.models.list().data] == [MODEL]
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="wrong-key").models.list()


@needs_ray
def test_requests_that_begin_alike_meet(client: httpx.Client) -> None:
    places: dict[str, set[str]] = {}
    for number in range(4):
        for letter in "abcdef":
            start = f"{letter * 40} and so on, "
            answer = ask(client, f"{start} {number}")
            places.setdefault(letter, set()).add(answer.headers["x-qeff-replica"])
    assert all(len(found) == 1 for found in places.values()), places
    assert len(set.union(*places.values())) == 2, "both of them work"


@needs_ray
def test_numbers_are_those_of_all_replicas(client: httpx.Client) -> None:
    before = stats(client)
    for letter in "uvwxyz":
        ask(client, letter * 30)
    after = stats(client)
    assert (after["replicas"], after["open"]) == (2, 2)
    assert after["finished"] == before["finished"] + 6
    assert metric(client, "qeff:replicas ") == 2


@needs_ray
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "x", "model": "none"}),
        ("/v1/completions", {"prompt": "x", "max_tokens": "many"}),
        ("/v1/completions", {"prompt": "x" * 200_000}),
        ("/v1/completions", {"prompt": "x " * 1000}),
        ("/v1/chat/completions", {"messages": []}),
        ("/v1/chat/completions", {"messages": [], "stream": True}),
        ("/v1/nothing", {}),
    ],
)
def test_errors_are_those_of_the_server(client: httpx.Client, run_server, path, body) -> None:
    with run_server(max_body_bytes=100_000) as plain:
        wanted = plain.post(path, **body)
    got = client.post(path, json=body)
    assert (got.status_code, got.content) == (wanted.status_code, wanted.content)
    assert 400 <= got.status_code < 500
    headers = [(name, value) for name, value in got.headers.multi_items() if name == "x-request-id"]
    assert len(headers) == 1, "one id, and not Ray's beside ours"


@needs_ray
def test_anthropic_errors_have_the_id_of_the_response(client: httpx.Client) -> None:
    answer = client.post("/v1/messages", json={"model": MODEL})
    assert answer.status_code == 400
    assert answer.json()["request_id"] == answer.headers["x-request-id"]


@needs_ray
def test_bodies_without_a_length_are_counted(client: httpx.Client) -> None:
    parts = (b"x" * 10_000 for _ in range(100))
    answer = client.post(
        "/v1/completions", content=parts, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "request_too_large"


@needs_ray
def test_a_client_that_leaves_ends_its_answers(client: httpx.Client) -> None:
    before = metric(client, 'vllm:request_success_total{model_name="tiny",finished_reason="abort"')
    done = stats(client)["output_tokens"]
    with client.stream("POST", "/v1/completions", json=MANY) as answer:
        next(answer.iter_lines())
    wait_until(lambda: stats(client)["running"] == 0 and stats(client)["requests"] == 0, 5)
    assert stats(client)["output_tokens"] - done < 30 * 240, "it was not made to the end"
    assert metric(client, "qeff:cache_blocks_used") == 0
    after = metric(client, 'vllm:request_success_total{model_name="tiny",finished_reason="abort"')
    assert after > before


@needs_ray
def test_a_replica_that_dies_is_replaced(cluster: Process, client: httpx.Client) -> None:
    psutil = pytest.importorskip("psutil")
    family = psutil.Process(cluster.popen.pid).children(recursive=True)
    workers = [one for one in family if "ServeReplica:qeff:Worker" in " ".join(one.cmdline())]
    assert len(workers) == 2
    lines: list[str] = []
    with client.stream("POST", "/v1/completions", json=MANY) as answer:
        for line in answer.iter_lines():
            if not lines:
                for one in workers:
                    one.kill()
            lines.append(line)
    data = [line for line in lines if line]
    assert data[-1] == "data: [DONE]" and "ask again" in data[-2]
    wait_until(lambda: client.get("/ready").status_code == 200, 60)
    wait_until(lambda: stats(client).get("replicas") == 2, 60)
    assert ask(client, "my name is").status_code == 200


@needs_ray
def test_it_drains_and_ends_with_0(cluster: Process, client: httpx.Client) -> None:
    psutil = pytest.importorskip("psutil")
    family = psutil.Process(cluster.popen.pid).children(recursive=True)
    assert len(family) > 4
    lines: list[str] = []
    refused = None
    with client.stream("POST", "/v1/completions", json=MANY) as answer:
        for line in answer.iter_lines():
            if not lines:
                cluster.popen.send_signal(signal.SIGTERM)
                time.sleep(0.3)
                refused = client.post("/v1/completions", json={"prompt": "x"})
            lines.append(line)
    assert [line for line in lines if line][-1] == "data: [DONE]", "what ran was finished"
    assert not any("error" in line for line in lines)
    assert refused is not None and refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0
    assert cluster.popen.wait(60) == 0
    wait_until(lambda: not any(one.is_running() for one in family), 20)
    log = "".join(cluster.lines)
    assert "Traceback" not in log.partition("draining")[2]
    assert KEY not in log and "path=/v1/completions status=200" in log
    assert "status=401" in log and "status=413" in log
