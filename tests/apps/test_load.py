"""``qeff bench serve``: the client reads what servers write, and the figures are the right ones."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest

from qeff.apps.cli.main import main
from qeff.apps.load import drive, figures, prompts
from qeff.apps.load.client import Address, ConnectionLost, fetch_json, request
from qeff.apps.load.command import goal, percents
from qeff.apps.load.lengths import Lengths, arrivals
from qeff.apps.load.record import Record
from qeff.apps.load.sending import Target, send
from qeff.core.errors import OptionValueError, RequestError, ResourceError


@dataclass
class Talker:
    """A server of canned answers, in a thread of its own."""

    port: int = 0
    bodies: list[dict] = field(default_factory=list)
    running: int = 0
    most: int = 0
    counts_tokens: bool = True
    pause_s: float = 0.002

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ")[1]
        length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
        body = json.loads(await reader.readexactly(length) or b"null")
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            async for piece in self.answer(path, body):
                writer.write(piece)
                await writer.drain()
        finally:
            self.running -= 1
            writer.close()

    async def answer(self, path: str, body: dict) -> AsyncIterator[bytes]:
        if path == "/v1/models":
            yield plain({"data": [{"id": "canned"}]})
        elif path == "/tokenize" and self.counts_tokens:
            # Every word with an "a" is two tokens, and a text begins with one.
            words = body["prompt"].split()
            yield plain({"count": 1 + len(words) + sum("a" in word for word in words)})
        elif path in ("/v1/completions", "/v1/chat/completions"):
            self.bodies.append(body)
            async for piece in self.stream(body, is_chat="messages" in body):
                yield piece
        elif path == "/torn":
            yield b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nonly this"
        elif path == "/until-closed":
            yield b"HTTP/1.1 200 OK\r\n\r\nto the "
            yield b"end"
        elif path == "/chunked":  # with an extension, upper-case digits and a trailer
            yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n"
            yield b"A;why=not\r\n0123456789\r\n1\r\n\n\r\n0\r\nX-After: 1\r\n\r\n"
        elif path == "/not-http":
            yield b"SSH-2.0-nothing\r\n\r\n"
        else:
            yield plain({"detail": "Not Found"}, 404)

    async def stream(self, body: dict, *, is_chat: bool) -> AsyncIterator[bytes]:
        prompt = body["messages"][-1]["content"] if is_chat else body["prompt"]
        if "refuse" in prompt:
            yield plain({"error": {"message": "too\nmuch", "type": "x"}}, 429)
            return
        yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        yield chunk(": beat\r\n\r\n")
        if is_chat:
            yield event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        for idx in range(body["max_tokens"]):
            await asyncio.sleep(self.pause_s)
            if idx == 1 and "halt" in prompt:
                return
            if idx == 1 and "fail" in prompt:
                yield event({"error": {"message": "memory ran out"}})
                return
            text = {"delta": {"content": "ä"}} if is_chat else {"text": "ä"}
            whole = event({"choices": [{"index": 0, **text}]})
            yield whole[:-9]  # an event, and a letter, in two pieces
            yield whole[-9:]
        yield event({"choices": [{"delta": {}, "finish_reason": "length"}]})
        if "silent" not in prompt:
            usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": body["max_tokens"]}
            yield event({"choices": [], "usage": usage})
        yield event("[DONE]") + b"0\r\n\r\n"


def plain(body: object, status: int = 200) -> bytes:
    text = json.dumps(body).encode()
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%s" % (status, len(text), text)


def chunk(text: str) -> bytes:
    data = text.encode()
    return b"%X\r\n%s\r\n" % (len(data), data)


def event(body: object) -> bytes:
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
    return chunk(f"data: {text}\r\n\r\n")


@contextmanager
def talking(talker: Talker) -> Iterator[Talker]:
    loop = asyncio.new_event_loop()

    async def begin() -> asyncio.Server:
        return await asyncio.start_server(talker.serve, "127.0.0.1", 0)

    server = loop.run_until_complete(begin())
    talker.port = server.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield talker
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()


@pytest.fixture
def talker() -> Iterator[Talker]:
    with talking(Talker()) as talker:
        yield talker


def address(talker: Talker) -> Address:
    return Address("127.0.0.1", talker.port)


def target(talker: Talker, **more) -> Target:
    return Target(address=address(talker), model="canned", **more)


def command(talker: Talker, *words: str) -> list[str]:
    return ["bench", "serve", "--base-url", f"http://127.0.0.1:{talker.port}/v1", *words]


# ---- the client --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("http://127.0.0.1:8000", Address("127.0.0.1", 8000)),
        ("http://a.b/v1/", Address("a.b", 80)),
        ("https://a.b/x/v1", Address("a.b", 443, True, "/x")),
        ("http://[::1]:9", Address("::1", 9)),
    ],
)
def test_addresses(url: str, found: Address) -> None:
    assert Address.parse(url) == found
    assert Address.parse(str(found)) == found


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://", "http://a:b", "http://[x"])
def test_wrong_addresses(url: str) -> None:
    with pytest.raises(OptionValueError, match="is no address"):
        Address.parse(url)


async def read(talker: Talker, path: str) -> bytes:
    async with request(address(talker), "GET", path) as reply:
        return await reply.read()


def test_bodies_of_every_kind(talker) -> None:
    assert asyncio.run(read(talker, "/until-closed")) == b"to the end"
    assert asyncio.run(read(talker, "/chunked")) == b"0123456789\n"
    assert asyncio.run(fetch_json(address(talker), "GET", "/chunked"))[1] is None
    assert asyncio.run(fetch_json(address(talker), "GET", "/x")) == (404, {"detail": "Not Found"})


def test_broken_answers_are_one_error(talker) -> None:
    with pytest.raises(ConnectionLost, match="in the middle"):
        asyncio.run(read(talker, "/torn"))
    with pytest.raises(ConnectionLost, match="does not speak HTTP"):
        asyncio.run(read(talker, "/not-http"))
    nobody = Address("127.0.0.1", 1)
    with pytest.raises(ConnectionLost, match="does not answer: Connection refused"):
        asyncio.run(fetch_json(nobody, "GET", "/"))


def test_errors_of_the_caller_stay_what_they_are(talker) -> None:
    async def mistaken() -> None:
        async with request(address(talker), "GET", "/v1/models"):
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        asyncio.run(mistaken())


# ---- one request -------------------------------------------------------------------------------


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_a_stream_is_followed(talker, endpoint) -> None:
    record = asyncio.run(send(target(talker, endpoint=endpoint), prompts.Ask("one two", 5)))
    assert record.error is None and record.is_whole
    assert (record.num_prompt, record.num_output, len(record.gaps)) == (2, 5, 4)
    assert 0.002 <= record.ttft < record.e2el
    assert record.tpot == pytest.approx(sum(record.gaps) / 4)
    (body,) = talker.bodies
    assert body["stream"] is True and body["model"] == "canned" and body["max_tokens"] == 5


def test_without_usage_pieces_are_counted(talker) -> None:
    record = asyncio.run(send(target(talker), prompts.Ask("silent", 5, 7)))
    assert (record.num_prompt, record.num_output) == (7, 5)


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ("refuse", "429: too much"),
        ("halt", "the connection ended in the middle of an answer"),
        ("fail", "memory ran out"),
    ],
)
def test_failures_have_their_reason(talker, prompt, reason) -> None:
    record = asyncio.run(send(target(talker), prompts.Ask(prompt, 5)))
    assert record.error == reason and not record.is_whole


def test_a_request_ends_after_its_time(talker) -> None:
    talker.pause_s = 5.0
    record = asyncio.run(send(target(talker, timeout_s=0.05), prompts.Ask("x", 5)))
    assert record.error == "no end after 0.05 s"


# ---- prompts, lengths, arrivals ----------------------------------------------------------------


def counter(talker: Talker) -> prompts.Counter:
    return prompts.Counter(address(talker), "canned")


def mixture(**more) -> prompts.Mixture:
    given = {"num_prompts": 6, "input_len": Lengths(9, 30), "output_len": Lengths(2, 4)}
    return prompts.Mixture(**(given | more))


def test_prompts_have_their_length_in_tokens(talker) -> None:
    some = asyncio.run(prompts.draw(mixture(prefix_len=11), counter(talker)))
    again = asyncio.run(prompts.draw(mixture(prefix_len=11), counter(talker)))
    other = asyncio.run(prompts.draw(mixture(prefix_len=11, seed=1), counter(talker)))
    assert some == again != other
    wanted = mixture().input_len.draw(np.random.default_rng(0), 6)
    for ask, length in zip(some, wanted, strict=True):
        # The last word may be one of two tokens where one is wanted.
        assert ask.num_tokens is not None and abs(ask.num_tokens - 11 - length) <= 1
        assert 2 <= ask.max_tokens <= 4
    begun = {tuple(ask.prompt.split()[:5]) for ask in some}
    assert len(begun) == 1 and len({ask.prompt for ask in some}) == 6


def test_prompts_have_their_length_where_words_are_many_tokens() -> None:
    class Letters:
        async def count(self, text: str) -> int:
            return 1 + len(text.replace(" ", ""))

    wanted = mixture().input_len.draw(np.random.default_rng(0), 6)
    some = asyncio.run(prompts.draw(mixture(), Letters()))
    counts = [len(ask.prompt.replace(" ", "")) + 1 for ask in some]
    assert [ask.num_tokens for ask in some] == counts
    assert all(abs(found - length) <= 2 for found, length in zip(counts, wanted, strict=True))


def test_a_word_is_a_token_where_nobody_counts(talker) -> None:
    talker.counts_tokens = False
    some = asyncio.run(prompts.draw(mixture(), counter(talker)))
    wanted = mixture().input_len.draw(np.random.default_rng(0), 6)
    assert [len(ask.prompt.split()) for ask in some] == wanted
    assert all(ask.num_tokens is None for ask in some)


def test_prompts_of_files(tmp_path) -> None:
    lines = tmp_path / "some.txt"
    lines.write_text("one\n\ntwo\n")
    assert [ask.prompt for ask in prompts.read(lines, mixture(num_prompts=3))] == [
        "one",
        "two",
        "one",
    ]
    objects = tmp_path / "some.jsonl"
    messages = [{"role": "user", "content": "x"}]
    objects.write_text(
        json.dumps({"prompt": "a", "output_tokens": 77}) + "\n" + json.dumps({"messages": messages})
    )
    first, second = prompts.read(objects, mixture(num_prompts=2))
    assert (first.prompt, first.max_tokens) == ("a", 77)
    assert second.prompt == messages and 2 <= second.max_tokens <= 4
    for text, said in (
        ("", "no prompt"),
        ("\n[1]", "line 2"),
        ('{"prompt": 1}', "neither"),
        ("{", "no JSON"),
    ):
        objects.write_text(text)
        with pytest.raises(RequestError, match=said):
            prompts.read(objects, mixture())
    with pytest.raises(RequestError, match="cannot be read"):
        prompts.read(tmp_path / "none", mixture())


def test_lengths() -> None:
    drawn = Lengths.parse("3:5").draw(np.random.default_rng(0), 200)
    assert set(drawn) == {3, 4, 5}
    assert Lengths.parse("7").draw(np.random.default_rng(0), 2) == [7, 7]


def test_arrivals_keep_the_rate_and_their_burstiness() -> None:
    spread = {}
    for burstiness in (0.2, 1.0, 50.0):
        times = arrivals(np.random.default_rng(3), 4000, 10.0, burstiness)
        assert times == sorted(times) and times[-1] == pytest.approx(400.0)
        gaps = np.diff([0.0, *times])
        spread[burstiness] = gaps.std() / gaps.mean()
        # The deviation of a gamma distribution, as a share of its mean, is 1 / sqrt(shape).
        assert spread[burstiness] == pytest.approx(burstiness**-0.5, rel=0.1)


# ---- the whole load ----------------------------------------------------------------------------


def test_concurrency_is_kept(talker) -> None:
    asks = [prompts.Ask("x", 4)] * 12
    records, seconds = asyncio.run(drive.drive(target(talker), asks, drive.Pace(concurrency=3)))
    assert talker.most == 3 and figures.most_at_once(records) == 3
    assert all(record.is_whole for record in records) and seconds > 4 * 4 * 0.002


def test_a_rate_spreads_requests(talker) -> None:
    asks = [prompts.Ask("x", 1)] * 20
    pace = drive.Pace(rate=100.0, burstiness=100.0, seed=1)
    records, seconds = asyncio.run(drive.drive(target(talker), asks, pace))
    assert 0.19 < seconds < 10
    began = sorted(record.started for record in records)
    assert began[-1] - began[0] > 0.12


def record(start: float, first: float, gaps: list[float], end: float, prompt: int = 10) -> Record:
    return Record(start, prompt, len(gaps) + 1, start + first, start + first + sum(gaps), gaps, end)


def test_figures_are_those_of_the_records() -> None:
    good = record(0.0, 0.1, [0.02, 0.04], 0.2)
    slow = record(0.1, 0.9, [0.5], 2.0, prompt=20)
    failed = Record(0.0, error="429: full", ended=0.15)
    found = figures.figures(
        [good, slow, failed], 2.0, percentiles=(50, 100), goals_s={"ttft": 0.5, "itl": 0.05}
    )
    assert (found["completed"], found["failed"]) == (2, 1)
    assert found["failures"] == {"429: full": 1}
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (30, 5)
    assert found["output_throughput"] == 2.5 and found["total_token_throughput"] == 17.5
    assert (found["request_throughput"], found["request_goodput"]) == (1.0, 0.5)
    assert found["mean_ttft_ms"] == pytest.approx(500) and found["p100_ttft_ms"] == pytest.approx(
        900
    )
    assert found["median_itl_ms"] == pytest.approx(40) and found["p100_itl_ms"] == pytest.approx(
        500
    )
    assert found["mean_tpot_ms"] == pytest.approx((30 + 500) / 2)
    assert found["p100_e2el_ms"] == pytest.approx(1900)
    assert found["max_concurrent_requests"] == 3
    text = "\n".join(figures.lines(found, (50, 100)))
    assert "P100 TTFT (ms):" in text and "failed 1 times: 429: full" in text


def test_nothing_answered_has_no_latencies() -> None:
    found = figures.figures([Record(0.0, error="x", ended=1.0)], 1.0)
    assert found["mean_ttft_ms"] is None and found["output_throughput"] == 0
    assert "Mean TTFT (ms):" in "\n".join(figures.lines(found, (50, 90, 95, 99)))


def test_the_command(talker, tmp_path, capsys) -> None:
    picture, out = tmp_path / "load.png", tmp_path / "load.json"
    words = ["--num-prompts", "8", "--concurrency", "4", "--input-len", "5:9", "--output-len", "3"]
    words += ["--goodput", "ttft:30", "e2e:30", "--percentiles", "50,99.9", "--endpoint", "chat"]
    words += ["--ignore-eos", "--extra-body", '{"top_k": 1}', "--plot", str(picture)]
    assert main(command(talker, *words, "--json", str(out))) == 0
    printed = capsys.readouterr().out
    assert "Successful requests:" in printed and "P99.9 E2EL (ms):" in printed
    found = json.loads(out.read_text())
    assert found["completed"] == 8 and found["model"] == "canned"
    assert found["request_goodput"] == found["request_throughput"] > 0
    assert len(found["requests"]) == 8 and found["total_output_tokens"] == 24
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert len(talker.bodies) == 9  # and the warm-up
    assert all(body["ignore_eos"] and body["top_k"] == 1 for body in talker.bodies)


def test_json_on_stdout_is_alone_there(talker, capsys) -> None:
    assert main(command(talker, "--num-prompts", "2", "--no-warm-up", "--json", "-")) == 0
    assert json.loads(capsys.readouterr().out)["completed"] == 2
    assert len(talker.bodies) == 2


def test_failures_are_counted_and_shown(talker, tmp_path, capsys) -> None:
    file = tmp_path / "mixed.txt"
    file.write_text("fine\nrefuse\nhalt\n")
    assert main(command(talker, "--num-prompts", "6", "--prompts", str(file))) == 0
    printed = capsys.readouterr().out
    assert (
        "failed 2 times: 429: too much" in printed and "failed 2 times: the connection" in printed
    )


def test_mistakes_are_one_sentence(talker, tmp_path, capsys) -> None:
    file = tmp_path / "refused.txt"
    file.write_text("refuse\n")
    wrong = {
        ("--prompts", str(file)): (1, "the warm-up request failed: 429: too much"),
        ("--prompts", str(file), "--input-len", "5"): (2, "for random prompts"),
        ("--input-len", "5:2"): (2, "no range"),
        ("--input-len", "x"): (2, "neither a number"),
        ("--request-rate", "0"): (2, "not a number above 0"),
        ("--percentiles", "50,101"): (2, "not a list of percentiles"),
        ("--extra-body", "[]"): (2, "no JSON object"),
        ("--base-url", "http://127.0.0.1:1"): (1, "does not answer"),
        ("--prompts", "nowhere"): (1, "cannot be read"),
    }
    for words, (code, said) in wrong.items():
        assert main(command(talker, *words)) == code, words
        err = capsys.readouterr().err
        assert said in err and "Traceback" not in err
    for text in ("ttft", "speed:1", "ttft:-1"):
        with pytest.raises(Exception, match=text.split(":")[-1]):
            goal(text)
    assert goal("e2e:10") == ("e2el", 10.0) and percents("99,50") == (50.0, 99.0)


def test_a_server_without_models_is_told(talker) -> None:
    lost = Target(address=Address("127.0.0.1", talker.port, prefix="/none"), model="")
    with pytest.raises(RequestError, match="names no model"):
        asyncio.run(drive.first_model(lost))
    with pytest.raises(ResourceError, match="warm-up request failed: 404"):
        asyncio.run(drive.warm_up(lost, prompts.Ask("x", 1)))


def test_bench_of_a_model_is_not_taken_for_the_load(capsys) -> None:
    assert main(["bench", "--prompt-len", "x"]) == 2
    assert "--prompt-len" in capsys.readouterr().err
    assert main(["bench", "serve", "--prompt-len", "4"]) == 2
    assert "unknown option --prompt-len" in capsys.readouterr().err
