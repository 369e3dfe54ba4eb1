"""Several models in one server: names, opening on demand, and a memory limit."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from qeff.apps.server.errors import ApiError
from qeff.apps.server.footprint import cache_tokens_within, full_tokens, num_bytes
from qeff.apps.server.models import Entry, Models
from qeff.container import Container
from qeff.core.errors import OptionValueError
from qeff.runtime import open_session

ASK = {"prompt": "my name is", "max_tokens": 4, "temperature": 0}


def entries(container: Path, *names: str) -> list[Entry]:
    from qeff.apps.opening import Setup

    return [Entry(name=name, path=container, ctx_len=256, setup=Setup(threads=1)) for name in names]


def each_bytes(container: Path) -> int:
    return num_bytes(Container.open(container))


def test_the_catalog(server) -> None:
    listed = server.get("/v1/models").json()
    (card,) = listed["data"]
    assert listed["object"] == "list"
    assert (card["id"], card["object"], card["max_model_len"]) == ("tiny", "model", 256)
    assert server.get("/v1/models/tiny").json() == card


def test_the_first_model_is_the_default(run_server, container) -> None:
    with run_server({"a": container, "org/b": container}) as one:
        assert one.post("/v1/completions", **ASK).json()["model"] == "a"
        assert not one.state.models.is_open("org/b"), "it is opened when it is first asked"
        assert one.post("/v1/completions", model="org/b", **ASK).json()["model"] == "org/b"
        assert one.state.models.is_open("org/b")
        assert one.get("/v1/models/org/b").json()["id"] == "org/b"
        text = one.get("/metrics").text
        assert 'vllm:generation_tokens_total{model_name="a"} 4' in text
        assert 'vllm:generation_tokens_total{model_name="org/b"} 4' in text


def test_an_idle_model_is_closed_for_another(run_server, container) -> None:
    limit = int(each_bytes(container) * 2.5)
    with run_server(dict.fromkeys("abc", container), memory_limit=limit) as one:
        for name in "abcab":
            assert one.post("/v1/completions", model=name, **ASK).status_code == 200
            assert sum(one.state.models.is_open(each) for each in "abc") <= 2
        assert not one.state.models.is_open("c"), "it was idle longest"
        text = one.get("/metrics").text
        assert 'vllm:generation_tokens_total{model_name="a"} 8' in text, "counts outlive engines"
        assert 'qeff:steps_total{model_name="a"} 8' in text


def test_many_at_once_under_a_limit(run_server, container) -> None:
    limit = int(each_bytes(container) * 2.5)
    with run_server(dict.fromkeys("abc", container), memory_limit=limit) as one:
        with ThreadPoolExecutor(12) as pool:
            asked = [pool.submit(one.post, "/v1/completions", model=n, **ASK) for n in "abc" * 8]
            codes = [each.result().status_code for each in asked]
        assert set(codes) <= {200, 503} and codes.count(200) >= 8
        assert one.post("/v1/completions", model="c", **ASK).status_code == 200


def test_a_model_in_use_is_not_closed(container) -> None:
    async def run() -> None:
        models = Models(entries(container, "a", "b"), int(each_bytes(container) * 1.5))
        async with models.use("a") as served:
            with pytest.raises(ApiError) as caught:
                async with models.use("b"):
                    pass
            assert caught.value.status == 503 and "Retry-After" in caught.value.headers
            assert served is models.opened()[0]
        async with models.use("b"):
            assert [one.name for one in models.opened()] == ["b"]
        await models.close()
        assert models.opened() == []

    asyncio.run(run())


def test_two_that_are_opened_at_once_do_not_share_the_room_of_one(container) -> None:
    async def run() -> None:
        models = Models(entries(container, "a", "b"), int(each_bytes(container) * 1.5))
        are_done = asyncio.Event()

        async def use(name: str) -> int:
            async with models.use(name):
                await are_done.wait()
                return len(models.opened())

        uses = [asyncio.create_task(use(name)) for name in "ab"]
        done, _ = await asyncio.wait(uses, return_when=asyncio.FIRST_COMPLETED, timeout=20)
        are_done.set()
        assert len(done) == 1 and isinstance(done.pop().exception(), ApiError)
        found = await asyncio.gather(*uses, return_exceptions=True)
        assert [one for one in found if isinstance(one, int)] == [1]
        await models.close()

    asyncio.run(run())


def test_asked_twice_at_once_it_is_opened_once(container) -> None:
    async def run() -> None:
        models = Models(entries(container, "a"))

        async def use() -> object:
            async with models.use(None) as served:
                return served

        first, second = await asyncio.gather(use(), use())
        assert first is second
        await models.close()

    asyncio.run(run())


def test_a_container_that_is_gone(run_server, container, tmp_path) -> None:
    with run_server({"a": container, "b": tmp_path / "none"}) as one:
        answer = one.post("/v1/completions", model="b", **ASK)
        assert answer.status_code == 500
        assert "no container" in answer.json()["error"]["message"]
        assert one.post("/v1/completions", model="a", **ASK).status_code == 200
        assert len(one.get("/v1/models").json()["data"]) == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_that_broke_down_is_opened_again(run_server, monkeypatch) -> None:
    with run_server() as one:
        (served,) = one.state.models.opened()

        engine = served._engine._engine

        def broken() -> list:
            assert not engine.has_work, "a mistake of ours"
            return []

        monkeypatch.setattr(engine, "step", broken)
        answer = one.post("/v1/completions", **ASK)
        assert answer.status_code == 500
        assert "broke down" in answer.json()["error"]["message"]
        assert one.get("/metrics").status_code == 200
        assert one.post("/v1/completions", **ASK).status_code == 200


def test_two_models_of_one_name(container) -> None:
    with pytest.raises(OptionValueError, match="two models are called 'a'"):
        Models(entries(container, "a", "b", "a"))


def test_a_cache_that_fits(container, run_server) -> None:
    opened = Container.open(container)
    assert full_tokens(opened) == 8 * 256
    assert cache_tokens_within(opened, num_bytes(opened)) is None
    part = cache_tokens_within(opened, num_bytes(opened, 1000))
    assert part is not None and 990 <= part <= 1000
    assert cache_tokens_within(opened, 0) == 256, "one context at least"


def test_a_limit_that_is_too_small_for_any(container) -> None:
    with pytest.raises(OptionValueError, match="memory"):
        Models(entries(container, "a"), 1000).check()


class Slow:
    """A session that prepares, as one on a GPU; tells what was called, in order."""

    def __init__(self, session) -> None:
        self._session = session
        self.caps = replace(session.caps, prepares=True)
        self.called: list[str] = []

    def __getattr__(self, name: str):
        self.called.append(name)
        return (lambda: None) if name == "prepare" else getattr(self._session, name)


@pytest.mark.parametrize(("words", "wanted"), [([], True), (["--no-prepare"], False)])
def test_a_device_is_prepared_before_the_first_request(
    container, monkeypatch, words: list[str], wanted: bool
) -> None:
    from qeff.apps import opening
    from qeff.apps.cli import serve
    from qeff.apps.terminal.parser import Parser
    from qeff.apps.terminal.screen import Screen
    from qeff.apps.terminal.served_models import find_entries
    from qeff.generate import Text

    parser = Parser("qeff serve", serve.HELP)
    serve.add_arguments(parser)
    args = parser.parse([str(container), "--cache-tokens", "512", *words])
    args.layers.fill(args, None)
    args.screen = Screen(is_quiet=True)
    ((entry,), _) = find_entries(args)
    sessions = []

    def opened(container, setup):
        sessions.append(Slow(open_session(container)))
        return sessions[-1]

    monkeypatch.setattr(opening, "_open", opened)
    one = Container.open(entry.path)
    opening.open_engine(one, Text.from_container(one), entry.setup).close()
    called = [name for name in sessions[0].called if name in ("reserve", "prepare", "step")]
    assert called == (["reserve", "prepare"] if wanted else ["reserve"])
