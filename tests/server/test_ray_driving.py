"""Requests on their way to a replica, and an application driven without a socket; no Ray needed."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from qeff.apps.server.config import ServerConfig
from qeff.apps.server.guards import guarded
from qeff.apps.server.journal import Journal, RequestLog
from qeff.apps.server.ray_cluster import driving
from qeff.apps.server.ray_cluster.driving import Life, answer
from qeff.apps.server.ray_cluster.forwarded import MAX_TEXT, Forwarded, request_id, routing_text
from qeff.apps.server.replicas import threads_each
from qeff.core.errors import ResourceError

START = {"type": "http.response.start", "status": 200, "headers": []}
END = {"type": "http.response.body", "body": b"", "more_body": False}


def scope(path: str = "/v1/completions", **more: Any) -> dict[str, Any]:
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"a=1",
        "headers": [(b"Content-Type", b"application/json"), (b"host", b"127.0.0.1")],
        "client": ("127.0.0.1", 5),
        "server": ("127.0.0.1", 8000),
        "scheme": "http",
        **more,
    }


def asked(**body: Any) -> Forwarded:
    return Forwarded.of(scope(), json.dumps(body).encode())


# ---- requests ----------------------------------------------------------------------------------


def test_a_request_arrives_as_it_was() -> None:
    sent = Forwarded.of(scope(), b'{"prompt": "x"}')
    came = pickle.loads(pickle.dumps(sent))
    assert came == sent and came.body == b'{"prompt": "x"}'
    there = came.scope()
    for name in ("method", "path", "raw_path", "query_string", "client", "server", "scheme"):
        assert there[name] == scope()[name]
    assert (b"content-type", b"application/json") in there["headers"]
    assert "qeff.id" not in there


@pytest.mark.parametrize("given", [b"abc-1.2_3", b"x" * 64])
def test_an_id_stays(given: bytes) -> None:
    headers = [(b"x-request-id", given)]
    assert request_id(headers) == given.decode()
    assert Forwarded.of(scope(headers=headers), b"").scope()["qeff.id"] == given.decode()


@pytest.mark.parametrize("given", [b"", b"x" * 65, b"two words", b"line\nbreak", b"\xff"])
def test_an_id_that_may_not_stand_in_a_log_does_not(given: bytes) -> None:
    assert request_id([(b"x-request-id", given)]) is None


def beginning(body: dict[str, Any], path: str = "/p", headers: Any = ()) -> str:
    return routing_text(path, headers, json.dumps(body).encode())[1:]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"prompt": "once"}, "once"),
        ({"prompt": ["one", "two"]}, "one\ntwo"),
        ({"prompt": [5, 17]}, "5 17"),
        ({"prompt": [[5], [17]]}, "5\n17"),
        ({"messages": [{"role": "user", "content": "hi"}]}, "hi"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}, "hi"),
        ({"messages": [{"content": "b"}], "system": "a"}, "a\nb"),
        ({"messages": [{"content": "b"}], "system": [{"text": "a"}]}, "a\nb"),
        ({"input": "what", "instructions": "be brief"}, "be brief\nwhat"),
        ({"input": [{"role": "user", "content": "what"}]}, "what"),
        ({}, "/p"),
        ({"prompt": ""}, "/p"),
        ({"messages": []}, "/p"),
        ({"messages": 5, "prompt": None, "input": {"a": 1}}, "/p"),
    ],
)
def test_what_a_prompt_begins_with(body: dict[str, Any], text: str) -> None:
    assert beginning(body) == text


def test_no_body_has_a_text_too() -> None:
    assert routing_text("/ready", (), b"")[1:] == "/ready"


def test_a_long_prompt_is_cut() -> None:
    assert beginning({"prompt": "x" * 10**6}) == "x" * MAX_TEXT
    assert len(beginning({"prompt": ["xyz"] * 10**5})) <= MAX_TEXT


def test_keys_and_models_are_kept_apart() -> None:
    body = json.dumps({"prompt": "x", "model": "a"}).encode()
    other = json.dumps({"prompt": "x", "model": "b"}).encode()
    key, another = ((b"x-api-key", b"one"),), ((b"x-api-key", b"two"),)
    texts = {routing_text("/", key, body), routing_text("/", another, body)}
    texts.add(routing_text("/", key, other))
    assert len(texts) == 3 and {text[1:] for text in texts} == {"x"}
    assert routing_text("/", key, body) == routing_text("/", key, body)
    assert "one" not in "".join(texts)


# ---- an application without a socket -----------------------------------------------------------


def collect(app: Any, request: Forwarded | None = None) -> list[dict[str, Any]]:
    async def run() -> list[dict[str, Any]]:
        parts = [part async for part in answer(app, request or asked(prompt="x"))]
        return [message for part in parts for message in part]

    return asyncio.run(run())


def test_messages_come_out_and_the_body_goes_in() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        assert message["more_body"] is False
        await send(START)
        await send({"type": "http.response.body", "body": message["body"], "more_body": True})
        await send(END)

    messages = collect(app)
    assert messages[0] == START and messages[-1] == END
    assert json.loads(messages[1]["body"]) == {"prompt": "x"}


def test_messages_come_as_they_are_made() -> None:
    async def run() -> None:
        goes_on = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send(START)
            await goes_on.wait()
            await send(END)

        messages = answer(app, asked())
        assert await asyncio.wait_for(anext(messages), 5) == [START]
        goes_on.set()
        assert await asyncio.wait_for(anext(messages), 5) == [END]
        with pytest.raises(StopAsyncIteration):
            await anext(messages)

    asyncio.run(run())


def test_what_comes_together_goes_together() -> None:
    async def run() -> list[list[dict[str, Any]]]:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send(START)
            await send(END)
            await asyncio.sleep(0.05)  # what is done after a response, such as its line in the log

        return [part async for part in answer(app, asked())]

    assert asyncio.run(run()) == [[START, END]]


def leaver(ends: list[str]) -> Callable[..., Coroutine[Any, Any, None]]:
    """An application that streams until its client has gone."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(START)
        assert (await receive())["type"] == "http.disconnect"
        ends.append("noticed")

    return app


def test_leaving_is_noticed() -> None:
    ends: list[str] = []

    async def run() -> None:
        messages = answer(leaver(ends), asked())
        assert await anext(messages) == [START]
        assert ends == []
        await messages.aclose()

    asyncio.run(run())
    assert ends == ["noticed"]


def test_a_reader_that_is_cancelled_has_left() -> None:
    ends: list[str] = []

    async def run() -> None:
        async def read() -> None:
            async for _ in answer(leaver(ends), asked()):
                pass

        task = asyncio.create_task(read())
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    asyncio.run(run())
    assert ends == ["noticed"]


def test_an_application_that_does_not_notice_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driving, "LEAVE_S", 0.05)
    ends: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("ended")
            raise

    async def run() -> None:
        messages = answer(app, asked())
        await anext(messages)
        await messages.aclose()

    asyncio.run(run())
    assert ends == ["ended"]


@pytest.mark.parametrize("sent", [[], [START]])
def test_what_goes_wrong_is_raised(sent: list[dict[str, Any]]) -> None:
    got: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in sent:
            await send(message)
        raise ValueError("broken")

    async def run() -> None:
        messages = answer(app, asked())
        while True:
            got.extend(await anext(messages))

    with pytest.raises(ValueError, match="broken"):
        asyncio.run(run())
    assert got == sent


def test_what_goes_wrong_after_the_end_is_not() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send(END)
        raise ValueError("the answer was sent, as Starlette does with its 500")

    assert collect(app) == [START, END]


# ---- life --------------------------------------------------------------------------------------


def test_a_life_from_start_to_end() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "lifespan"
        for kind in ("startup", "shutdown"):
            seen.append((await receive())["type"])
            await send({"type": f"lifespan.{kind}.complete"})

    async def run() -> None:
        life = Life(app)
        await life.stop()  # was never started
        await life.start()
        assert seen == ["lifespan.startup"]
        await life.stop()
        await life.stop()

    asyncio.run(run())
    assert seen == ["lifespan.startup", "lifespan.shutdown"]


def test_a_life_that_does_not_begin() -> None:
    async def refuses(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no such container"})

    async def breaks(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("broken")

    async def ends(scope: Any, receive: Any, send: Any) -> None:
        return

    with pytest.raises(ResourceError, match="no such container"):
        asyncio.run(Life(refuses).start())
    with pytest.raises(ValueError, match="broken"):
        asyncio.run(Life(breaks).start())
    with pytest.raises(ResourceError, match="could not start"):
        asyncio.run(Life(ends).start())


def test_the_server_itself_is_driven(server: Any) -> None:
    """The application of a running server answers without its socket as it does with it."""
    from qeff.apps.server.app import create_app

    by_socket = server.post("/v1/completions", prompt=5)
    first, *rest = collect(create_app(server.state), asked(prompt=5))
    assert first["status"] == by_socket.status_code == 400
    assert b"".join(message["body"] for message in rest) == by_socket.content
    assert {name for name, _ in first["headers"]} >= {b"x-request-id", b"content-type"}


# ---- what is shared with other ways to serve ---------------------------------------------------


def test_a_line_of_the_log_is_written_once(capsys: pytest.CaptureFixture[str]) -> None:
    async def elsewhere(scope: Any, receive: Any, send: Any) -> None:
        scope["qeff.elsewhere"] = True
        await send(START)
        await send(END)

    app = guarded(elsewhere, ServerConfig(), Journal("plain"))
    assert collect(app)[0]["status"] == 200
    assert capsys.readouterr().err == ""
    wrong = Forwarded.of(scope(), b"")
    assert collect(app, wrong)[0]["status"] == 400
    assert "status=400" in capsys.readouterr().err


def test_an_answer_from_elsewhere_has_its_id_once() -> None:
    async def elsewhere(scope: Any, receive: Any, send: Any) -> None:
        await RequestLog(answering, Journal())(scope, receive, send)

    async def answering(scope: Any, receive: Any, send: Any) -> None:
        await send(dict(START))
        await send(END)

    request = Forwarded.of(scope("/v1/messages"), b"{}")
    headers = collect(RequestLog(elsewhere, Journal()), request)[0]["headers"]
    for name in (b"x-request-id", b"request-id"):
        assert [one for one, _ in headers].count(name) == 1


@pytest.mark.parametrize(
    ("processors", "count", "threads"),
    [
        ([8], 1, 8),
        ([8], 2, 4),
        ([8], 3, 2),
        ([2], 3, 1),
        ([8, 8], 2, 8),
        ([8, 8], 3, 4),
        ([8, 2], 3, 2),
    ],
)
def test_processors_are_shared(processors: list[int], count: int, threads: int) -> None:
    assert threads_each(processors, count) == threads
