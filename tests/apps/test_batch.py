"""``qeff batch``: every line answered exactly once, whatever happens to the process."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qeff.apps.batch import jobs
from qeff.apps.batch.ledger import Ledger
from qeff.apps.batch.senders import InProcess, Remote, Reply
from qeff.apps.batch.work import Summary, Worker, work
from qeff.apps.load.client import LARGE_BYTES, Address, ConnectionLost
from qeff.core.errors import RequestError, ResourceError

CHAT = "/v1/chat/completions"


def line(name: str, **body) -> dict:
    body = {"model": "m", "messages": [{"role": "user", "content": name}], **body}
    return {"custom_id": name, "method": "POST", "url": CHAT, "body": body}


def write(path: Path, lines: list[dict | str]) -> Path:
    text = "".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in lines)
    path.write_text(text)
    return path


def answers(path: Path) -> dict[str, dict]:
    """The answers by custom id; fails when one stands there twice."""
    found: dict[str, dict] = {}
    for text in path.read_text().splitlines():
        answer = json.loads(text)
        assert answer["custom_id"] not in found
        found[answer["custom_id"]] = answer
    return found


class Echo:
    """Says what it was asked; fails or refuses where a test wants it to."""

    def __init__(self, lost: int = 0, busy: int = 0) -> None:
        self.asked: list[str] = []
        self.lost, self.busy = lost, busy
        self.running = self.most = 0

    async def post(self, url: str, body: dict) -> Reply:
        content = body["messages"][0]["content"]
        self.asked.append(content)
        if self.lost:
            self.lost -= 1
            raise ConnectionLost("nobody there")
        if self.busy:
            self.busy -= 1
            return Reply(429, "", {"error": {}}, 0.0)
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.001)
        self.running -= 1
        usage = {"prompt_tokens": 2, "completion_tokens": 3}
        return Reply(200, "req_1", {"said": content, "usage": usage})


def run(source: Path, out: Path, sender, *, at_once: int = 4, patience_s: float = 0.0) -> Summary:
    wanted = jobs.check(source)
    with Ledger(out) as ledger:
        ledger.check(wanted, source)
        worker = Worker(sender, ledger, patience_s)
        return asyncio.run(work(source, len(wanted), worker, at_once))


# ---- lines -------------------------------------------------------------------------------------


def test_lines_are_answered_in_the_documented_shape(tmp_path) -> None:
    source = write(tmp_path / "in", [line(f"n{n}") for n in range(9)])
    summary = run(source, tmp_path / "out", sender := Echo())
    found = answers(tmp_path / "out")
    assert set(found) == {f"n{n}" for n in range(9)} and sender.most == 4
    one = found["n3"]
    assert set(one) == {"id", "custom_id", "response", "error"} and one["error"] is None
    assert one["id"].startswith("batch_req_")
    assert one["response"] == {
        "status_code": 200,
        "request_id": "req_1",
        "body": {"said": "n3", "usage": {"prompt_tokens": 2, "completion_tokens": 3}},
    }
    told = summary.to_json()
    assert told.pop("seconds") > 0
    assert told == {
        "lines": 9, "answered_before": 0, "answered": 9, "failed": 0,
        "prompt_tokens": 18, "completion_tokens": 27,
    }  # fmt: skip


def test_bad_lines_have_an_error_of_their_own(tmp_path) -> None:
    bad = {
        "a": line("a") | {"method": "GET"},
        "b": line("b") | {"url": "/v1/files"},
        "c": line("c") | {"body": []},
        "d": line("d", stream=True),
    }
    nameless = ["{", "{", "[1]", json.dumps({"url": CHAT}), "[" * 100_000, '{"custom_id": 7}']
    source = write(tmp_path / "in", [*bad.values(), *nameless, "", line("fine")])
    summary = run(source, tmp_path / "out", Echo())
    assert (summary.lines, summary.answered, summary.failed) == (11, 11, 10)
    found = [json.loads(text) for text in (tmp_path / "out").read_text().splitlines()]
    named = {each["custom_id"]: each for each in found if each["custom_id"]}
    assert named["fine"]["error"] is None
    for name, said in {"a": "POST", "b": "url must", "c": "body", "d": "streamed"}.items():
        assert said in named[name]["error"]["message"] and named[name]["response"] is None
    messages = [each["error"]["message"] for each in found if each["custom_id"] is None]
    assert len(messages) == 6 and any(m.startswith("line 5 is no JSON") for m in messages)
    assert len({each["id"] for each in found}) == 11
    again = run(source, tmp_path / "out", sender := Echo())
    assert (again.answered_before, again.answered, sender.asked) == (11, 0, [])


def test_a_custom_id_that_stands_twice_is_refused(tmp_path) -> None:
    source = write(tmp_path / "in", [line("a"), line("b"), line("a")])
    with pytest.raises(RequestError, match="custom_id 'a' stands on more than one line"):
        jobs.check(source)


def test_lines_that_are_no_text(tmp_path) -> None:
    (tmp_path / "in").write_bytes(b"\xff\xfe\n" + json.dumps(line("a")).encode())  # and no end
    run(tmp_path / "in", tmp_path / "out", Echo())
    assert "no JSON" in answers(tmp_path / "out")[None]["error"]["message"]  # type: ignore[index]
    assert answers(tmp_path / "out")["a"]["response"]["status_code"] == 200


# ---- the output --------------------------------------------------------------------------------


def test_a_torn_line_is_cut_off_and_asked_again(tmp_path) -> None:
    source = write(tmp_path / "in", [line(f"n{n}") for n in range(5)])
    out = tmp_path / "out"
    run(source, out, Echo())
    whole, last = out.read_bytes(), out.read_bytes().splitlines(keepends=True)[-1]
    name = json.loads(last)["custom_id"]
    for cut in (1, len(last) // 2, len(last) - 1):
        out.write_bytes(whole[: -len(last) + cut])
        summary = run(source, out, sender := Echo())
        assert (summary.answered_before, sender.asked) == (4, [name])
        assert out.read_bytes() == whole


def test_files_of_others_are_left_alone(tmp_path) -> None:
    out = tmp_path / "out"
    for text in ("a diary, without an end", "a diary\n", '{"custom_id": "a"}\n', "[]\n"):
        out.write_text(text)
        with pytest.raises(RequestError, match=r"line 1 of .* is no answer of a batch"):
            Ledger(out)
        assert out.read_text() == text
    with Ledger(out, starts_over=True):
        assert out.read_text() == ""


def test_answers_to_other_questions_are_refused(tmp_path) -> None:
    run(write(tmp_path / "in", [line("a")]), tmp_path / "out", Echo())
    write(tmp_path / "in", [line("a", temperature=1)])
    with pytest.raises(RequestError, match=r"custom_id 'a' that .* does not ask like that"):
        run(tmp_path / "in", tmp_path / "out", Echo())
    more = write(tmp_path / "in", [line("a"), line("b")])  # growing is fine
    assert run(more, tmp_path / "out", Echo()).answered == 1


def test_one_process_writes_at_a_time(tmp_path) -> None:
    with Ledger(tmp_path / "out"), pytest.raises(ResourceError, match="another process"):
        Ledger(tmp_path / "out")
    Ledger(tmp_path / "out").__exit__(None, None, None)
    with pytest.raises(ResourceError, match="cannot be written"):
        Ledger(tmp_path / "no" / "out")


def test_a_full_disk_ends_the_batch(tmp_path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full here")
    code = (
        "import os; from pathlib import Path; from qeff.apps.batch.ledger import Ledger\n"
        "ledger = Ledger(Path(os.sys.argv[1])); ledger._file = os.open('/dev/full', os.O_WRONLY)\n"
        "ledger.append({'id': 'x', 'custom_id': 'y'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "out")], capture_output=True, text=True
    )
    assert "No space left" in done.stderr and "make room" in done.stderr


# ---- asking ------------------------------------------------------------------------------------


def test_a_full_queue_is_waited_for(tmp_path) -> None:
    source = write(tmp_path / "in", [line("a"), line("b")])
    assert run(source, tmp_path / "out", sender := Echo(busy=5)).failed == 0
    assert len(sender.asked) == 7


def test_a_lost_server_is_tried_again_then_the_batch_stops(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("qeff.apps.batch.work.WAIT_S", 0.001)
    source = write(tmp_path / "in", [line(f"n{n}") for n in range(6)])
    assert run(source, tmp_path / "out", Echo(lost=3), patience_s=5.0).answered == 6
    out = tmp_path / "second"
    with pytest.raises(ConnectionLost) as caught:
        run(source, out, Echo(lost=10_000), patience_s=0.02)
    assert "run the same command again" in (caught.value.hint or "")
    assert out.read_text() == ""
    assert run(source, out, Echo()).answered == 6


def test_a_missing_key_is_no_answer(tmp_path) -> None:
    class Strict(Echo):
        async def post(self, url: str, body: dict) -> Reply:
            return Reply(401, "", {"error": {}})

    source = write(tmp_path / "in", [line("a"), line("b")])
    with pytest.raises(RequestError, match="without a key"):
        run(source, tmp_path / "out", Strict())
    assert (tmp_path / "out").read_text() == ""
    assert run(source, tmp_path / "out", Echo()).answered == 2


def test_an_application_is_called_as_a_web_server_would(tmp_path) -> None:
    async def app(scope, receive, send) -> None:
        message = await receive()
        body = json.loads(message["body"])
        status = 200 if scope["path"] == CHAT else 404
        headers = [(b"X-Request-Id", b"req_7"), (b"retry-after", b"3")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b'{"a": ', "more_body": True})
        await send({"type": "http.response.body", "body": json.dumps(body["b"]).encode() + b"}"})

    reply = asyncio.run(InProcess(app).post(CHAT, {"b": 5}))
    assert reply == Reply(200, "req_7", {"a": 5}, 3.0)


def test_a_mistake_of_the_application_is_an_answer_too(tmp_path) -> None:
    async def app(scope, receive, send) -> None:
        """As web frameworks do it: the error is answered, then raised for the log."""
        if scope["path"] == CHAT:
            await send({"type": "http.response.start", "status": 500, "headers": []})
            await send({"type": "http.response.body", "body": b'{"error": {}}'})
        raise KeyError("ours")

    assert asyncio.run(InProcess(app).post(CHAT, {})) == Reply(500, "", {"error": {}})
    with pytest.raises(KeyError, match="ours"):
        asyncio.run(InProcess(app).post("/v1/completions", {}))


def test_a_remote_server_that_is_not_there() -> None:
    with pytest.raises(ConnectionLost, match="does not answer"):
        asyncio.run(Remote(Address("127.0.0.1", 1)).post(CHAT, {}))


@pytest.mark.parametrize("knows_expect", [True, False])
def test_a_body_that_a_server_refuses_unread_is_answered(knows_expect) -> None:
    payload = {"prompt": "a" * (LARGE_BYTES + 1)}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if knows_expect:  # and says no, before anything else is sent
            assert b"Expect: 100-continue" in head
            writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\n{}")
        else:
            size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            assert json.loads(await reader.readexactly(size)) == payload
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n{}")
        writer.close()

    async def ask() -> Reply:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return await Remote(Address("127.0.0.1", port)).post(CHAT, payload)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qeff.apps.load.client.PATIENCE_S", 0.1)
        assert asyncio.run(ask()).status == (413 if knows_expect else 200)


# ---- killed ------------------------------------------------------------------------------------

# A batch whose answers take a moment, in a process that has little to import.
SLOW = """
import asyncio, sys
from pathlib import Path
from qeff.apps.batch import jobs
from qeff.apps.batch.ledger import Ledger
from qeff.apps.batch.senders import Reply
from qeff.apps.batch.work import Worker, work

class Slow:
    async def post(self, url, body):
        await asyncio.sleep(0.002)
        text = body["messages"][0]["content"] * 20_000  # long lines, which are torn more easily
        return Reply(200, "", {"said": text})

source, out = map(Path, sys.argv[1:])
wanted = jobs.check(source)
with Ledger(out) as ledger:
    ledger.check(wanted, source)
    print("begun", flush=True)
    asyncio.run(work(source, len(wanted), Worker(Slow(), ledger), 8))
"""


def kill_at_random(words: list[str], seed: int, longest_s: float, env=None) -> Iterator[int]:
    """Run a command again and again, killing it, until it comes to its end; its exit codes."""
    moments = random.Random(seed)
    for attempt in range(60):
        process = subprocess.Popen(words, stdout=subprocess.PIPE, env=env)
        assert process.stdout is not None
        if process.stdout.readline():
            # Later ones get more time: a busy machine comes to an end, too.
            time.sleep(moments.uniform(0.0, longest_s) * (1 + attempt / 8))
        process.send_signal(signal.SIGKILL)
        process.stdout.close()
        yield (code := process.wait())
        if code == 0:
            return
    raise AssertionError("the batch never came to its end")


def test_killed_at_any_moment_every_line_is_answered_once(tmp_path, environment) -> None:
    source = write(tmp_path / "in", [*(line(f"{n:04}") for n in range(200)), "no JSON"])
    out, calm = tmp_path / "out", tmp_path / "calm"
    words = [sys.executable, "-c", SLOW, str(source)]
    subprocess.run([*words, str(calm)], check=True, capture_output=True, env=environment)
    codes = list(kill_at_random([*words, str(out)], 5, 0.06, environment))
    assert codes[-1] == 0 and codes.count(-signal.SIGKILL) >= 2
    assert len(answers(out)) == 201
    assert answers(out) == answers(calm)


def test_a_torn_write_of_every_length_is_mended(tmp_path) -> None:
    source = write(tmp_path / "in", [line("a"), line("b")])
    out = tmp_path / "out"
    run(source, out, Echo(), at_once=1)
    whole = out.read_bytes()
    for size in range(0, len(whole) + 1, 9):
        out.write_bytes(whole[:size])
        run(source, out, Echo(), at_once=1)
        assert out.read_bytes() == whole
