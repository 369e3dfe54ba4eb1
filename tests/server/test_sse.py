"""Event streams by themselves: heartbeats, errors, clients that leave or do not read."""

from __future__ import annotations

import asyncio
import json

import pytest
from starlette.requests import Request

from qeff.apps.server import sse
from qeff.apps.server.errors import ApiError, bad_request
from qeff.core.errors import RequestError


class Client:
    """Reads what a response sends, at its own pace."""

    def __init__(self, path: str = "/v1/completions", *, reads: bool = True) -> None:
        self.body = b""
        self.status = 0
        self.is_gone = asyncio.Event()
        self._reads = reads
        scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b""}
        self.scope = {**scope, "scheme": "http", "server": ("localhost", 80)}
        self.request = Request(self.scope, self.receive)

    async def receive(self) -> dict:
        await self.is_gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict) -> None:
        self.status = message.get("status", self.status)
        if not self._reads and message.get("body"):
            await asyncio.Event().wait()
        self.body += message.get("body", b"")

    async def take(self, events) -> None:
        response = await sse.respond(self.request, events)
        await response(self.scope, self.receive, self.send)


class Answer:
    """A generation that notes how it ended."""

    def __init__(self, *pieces: bytes | float | Exception) -> None:
        self.pieces = pieces
        self.num_given = 0
        self.is_over = False

    async def events(self):
        try:
            for piece in self.pieces:
                if isinstance(piece, Exception):
                    raise piece
                if isinstance(piece, float):
                    await asyncio.sleep(piece)
                else:
                    self.num_given += 1
                    yield piece
        finally:
            self.is_over = True


def test_events_are_json_lines() -> None:
    assert sse.event({"a": "é\n"}) == 'data: {"a":"é\\n"}\n\n'.encode()
    assert sse.event({}, "ping") == b"event: ping\ndata: {}\n\n"


def test_a_whole_stream() -> None:
    async def run() -> None:
        client, answer = Client(), Answer(b"1", 0.01, b"2", b"3")
        await client.take(answer.events())
        assert (client.status, client.body) == (200, b"123")

    asyncio.run(run())


@pytest.mark.parametrize("error", [bad_request("No."), RequestError("no")])
def test_an_error_before_the_first_event_has_its_status(error) -> None:
    async def run() -> None:
        client = Client()
        with pytest.raises(type(error)):
            await client.take(Answer(0.01, error).events())
        assert client.status == 0

    asyncio.run(run())


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (bad_request("No."), "No."),
        (RequestError("not so"), "Not so."),
        (ZeroDivisionError("inner words"), "The server made a mistake; its log says more."),
    ],
)
def test_an_error_after_it_is_an_event(error, said) -> None:
    async def run() -> None:
        client = Client()
        await client.take(Answer(b"data: 1\n\n", 0.01, error).events())
        first, second, third, _ = client.body.split(b"\n\n")
        assert (first, third) == (b"data: 1", b"data: [DONE]")
        assert json.loads(second.removeprefix(b"data: "))["error"]["message"] == said

    asyncio.run(run())


def test_anthropics_errors_have_a_name() -> None:
    async def run() -> None:
        client = Client("/v1/messages")
        await client.take(Answer(b"1\n\n", 0.01, ApiError(503, "Busy.")).events())
        assert b"event: error\ndata: " in client.body
        assert b"overloaded_error" in client.body and b"[DONE]" not in client.body

    asyncio.run(run())


def test_a_client_that_leaves_ends_the_generation() -> None:
    async def run() -> None:
        client, answer = Client(), Answer(b"1", 30.0, b"2")
        taking = asyncio.create_task(client.take(answer.events()))
        while not client.body:
            await asyncio.sleep(0.001)
        client.is_gone.set()
        await asyncio.wait_for(taking, 5)
        assert answer.is_over and answer.num_given == 1

    asyncio.run(run())


def test_one_that_leaves_before_the_first_event_too() -> None:
    async def run() -> None:
        client, answer = Client(), Answer(30.0, b"1")
        taking = asyncio.create_task(client.take(answer.events()))
        await asyncio.sleep(0.01)
        client.is_gone.set()
        with pytest.raises(ApiError, match="closed the connection"):
            await asyncio.wait_for(taking, 5)
        assert answer.is_over

    asyncio.run(run())


def test_a_client_that_does_not_read_holds_up_itself_alone(monkeypatch) -> None:
    monkeypatch.setattr(sse, "HEARTBEAT_S", 0.02)
    monkeypatch.setattr(sse, "STALL_S", 0.05)

    async def run() -> None:
        client, answer = Client(reads=False), Answer(*[b"1"] * 100)
        taking = asyncio.create_task(client.take(answer.events()))
        while not answer.is_over:
            await asyncio.sleep(0.001)
        assert answer.num_given == 100, "all was taken although nothing was read"
        await asyncio.wait_for(taking, 5)  # and the connection is given up in the end

    asyncio.run(run())


def test_a_heart_beats_where_nothing_comes(monkeypatch) -> None:
    monkeypatch.setattr(sse, "HEARTBEAT_S", 0.02)
    monkeypatch.setattr(sse, "PATIENCE_S", 0.01)

    async def run() -> None:
        client = Client()
        await client.take(Answer(0.2, b"1").events())
        assert client.body.startswith(sse.HEARTBEAT)
        assert client.body.replace(sse.HEARTBEAT, b"") == b"1"

    asyncio.run(run())


def test_what_gathers_is_sent_together() -> None:
    async def run() -> None:
        client = Client()
        sent: list[bytes] = []
        first = client.send

        async def slow(message: dict) -> None:
            sent.append(message.get("body", b""))
            await asyncio.sleep(0.02)
            await first(message)

        client.send = slow  # type: ignore[method-assign]
        await client.take(Answer(*[b"1", 0.001] * 20).events())
        assert client.body == b"1" * 20
        assert len(sent) < 15

    asyncio.run(run())
