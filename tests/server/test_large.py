"""Large requests: what they are told, and that nobody waits for them."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import httpx2 as httpx
import pytest

from qeff.apps.server import body
from qeff.apps.server.body import MAX_NESTS
from qeff.apps.server.errors import ApiError
from qeff.apps.server.large import LARGE
from qeff.generate.text import LONG_TEXT, Text

NUM_BODIES = 10
MAX_WAIT_S = 0.25  # a loop that reads such bodies itself takes 0.5 s and more, another 0.1 to 0.16
NUM_TRIES = 3
# In a process of its own, so that it holds up the server alone.
SENDER = """
import http.client, sys, threading
host, path, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
body = sys.stdin.buffer.read()
def send():
    connection = http.client.HTTPConnection(host, timeout=60)
    connection.request("POST", path, body, {"content-type": "application/json"})
    print(f"{connection.getresponse().status} ", end="")  # in one piece, whatever others print
threads = [threading.Thread(target=send) for _ in range(count)]
for one in threads: one.start()
for one in threads: one.join()
"""
SERVE = "import sys; from qeff.apps.cli.main import main; sys.exit(main(sys.argv[1:]))"
WORDS = 'the quick brown fox said "no" \n '


@pytest.fixture(scope="module")
def url(container: Path):
    words = [sys.executable, "-c", SERVE, "serve", str(container), "--port", "0", "--threads", "1"]
    words += ["--log-format", "none"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if " at http" in line)
        try:
            yield line.split(" at ")[1].strip()
        finally:
            process.terminate()


def longest_allowed() -> float:
    """Longer where others are at work: whoever waits for a processor answers no sooner."""
    return MAX_WAIT_S * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def longest_wait(url: str, path: str, sent: bytes) -> tuple[float, set[str]]:
    """The slowest answer of /health while such bodies come in, and what those were answered."""
    words = [sys.executable, "-c", SENDER, url.removeprefix("http://"), path, str(NUM_BODIES)]
    with (
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as sender,
        httpx.Client() as client,
    ):
        assert sender.stdin is not None and sender.stdout is not None
        sender.stdin.write(sent)
        sender.stdin.close()
        slowest = 0.0
        while sender.poll() is None:
            began = time.perf_counter()
            assert client.get(url + "/health").status_code == 200
            slowest = max(slowest, time.perf_counter() - began)
            time.sleep(0.005)
        return slowest, set(sender.stdout.read().decode().split())


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_body_is_looked_at_in_parts_that_belong_together(monkeypatch, size) -> None:
    monkeypatch.setattr(body, "SLICE", size)
    generator = random.Random(size)
    for _ in range(300):
        data = bytes(generator.choice(b'\\\\\\"[]u') for _ in range(generator.randrange(30)))
        parts = list(body._slices(data))
        assert b"".join(parts) == data
        for pair in (b"\\\\", b'\\"'):
            assert b"".join(one.replace(pair, b"") for one in parts) == data.replace(pair, b"")
            data = data.replace(b"\\\\", b"")
            parts = list(body._slices(data))
    deep = b'{"a":' * (body.MAX_DEPTH + 1) + b"1" + b"}" * (body.MAX_DEPTH + 1)
    with pytest.raises(ApiError, match="nested"):
        body.check_json(deep, "application/json")
    told = json.dumps({"a": '\\"[{' * 200}).encode()
    assert body.check_json(told, "application/json") == json.loads(told)


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("/v1/completions", {"prompt": WORDS * 450_000}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 1480}] * 9999}),
        ("/v1/completions", {"prompt": [7] * 240_000}),
    ],
    ids=["one text", "many messages", "token ids"],
)
def test_health_answers_while_large_bodies_come_in(url, path, sent) -> None:
    waits = []
    for _ in range(NUM_TRIES):
        slowest, statuses = longest_wait(url, path, json.dumps(sent).encode())
        assert statuses == {"400"}, "it fits no context"
        waits.append(slowest)
        if slowest < longest_allowed():
            return
    raise AssertionError(f"health took {waits} s")


def test_a_large_request_is_answered_as_a_small_one(url) -> None:
    asked = {"prompt": "my name is", "max_tokens": 8, "temperature": 0}
    small = httpx.post(url + "/v1/completions", json=asked, timeout=30).json()["choices"]
    padding = {"metadata": {"note": "x" * LARGE}}
    large = httpx.post(url + "/v1/completions", json={**asked, **padding}, timeout=30)
    assert large.json()["choices"] == small
    messages = [{"role": "user", "content": "my name is"}]
    for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses"):
        name = httpx.get(url + "/v1/models").json()["data"][0]["id"]
        asked = {"model": name, "messages": messages, "input": messages, "temperature": 0}
        limit = {"max_output_tokens": 8} if "responses" in path else {"max_tokens": 8}
        found = [
            httpx.post(url + path, json={**asked, **limit, **more}, timeout=30).json()
            for more in ({}, padding)
        ]
        counts = [
            {name: one["usage"][name] for name in one["usage"] if name.endswith("_tokens")}
            for one in found
        ]
        assert counts[0] and counts[0] == counts[1], found


def test_what_is_wrong_with_a_large_request_is_named(url) -> None:
    asked = {"prompt": [7] * 200_000 + ["no"], "metadata": "x" * LARGE}
    answer = httpx.post(url + "/v1/completions", json=asked, timeout=30)
    assert answer.status_code == 400 and answer.json()["error"]["param"].startswith("prompt")


def test_more_lists_than_anybody_means(url) -> None:
    asked = {"prompt": "x", "metadata": [[]] * (MAX_NESTS + 1)}
    answer = httpx.post(url + "/v1/completions", json=asked, timeout=30)
    assert answer.status_code == 413 and answer.json()["error"]["code"] == "too_many_parts"
    text = {"prompt": "[]" * (MAX_NESTS + 1)}  # text may have as many as it likes
    assert httpx.post(url + "/v1/completions", json=text, timeout=30).status_code == 400


def test_tools_that_fit_no_context_are_refused_before_they_are_tokenised(url) -> None:
    function = {"name": "f", "description": "d" * 4_000_000}
    asked = {
        "messages": [{"role": "user", "content": "hello"}],
        "tools": [{"type": "function", "function": function}],
    }
    began = time.perf_counter()
    answer = httpx.post(url + "/v1/chat/completions", json=asked, timeout=30)
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_beginning_that_fits_no_context_is_refused_before_it_is_tokenised(url, path) -> None:
    begun = {"role": "assistant", "content": WORDS * 400_000}
    asked = {
        "messages": [{"role": "user", "content": "hello"}, begun],
        "continue_final_message": True,
        "max_tokens": 1,
    }
    answer = httpx.post(url + path, json=asked, timeout=60)
    assert answer.status_code == 400
    assert "characters" in answer.json()["error"]["message"], "its tokens were not counted"


def test_long_texts_have_the_same_tokens(container) -> None:
    from qeff.container import Container

    text = Text.from_container(Container.open(container))
    words = "my name is not that of the flat earth, nor is it 17.\n" * (LONG_TEXT // 4)
    assert len(words) > LONG_TEXT
    ids = text.encode(words)
    assert ids == list(text.tokenizer.encode(words).ids)
    assert text.encode(words, add_special_tokens=False) == list(
        text.tokenizer.encode(words, add_special_tokens=False).ids
    )
    assert len(ids) > LONG_TEXT
    assert text.decode(ids) == text.tokenizer.decode(ids)
