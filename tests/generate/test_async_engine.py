"""An engine in its own thread, driven from an event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest
from mock_session import MockSession, greedy

from qeff.core.errors import OptionTypeError, RequestError
from qeff.generate import Engine, FinishReason, Request, SamplingParams
from qeff.generate.async_engine import AsyncEngine, _Reader

PROMPTS = [[5], [1, 2, 3], list(range(20, 37)), [9] * 8, [7, 7, 2, 60]]


def run(body):
    async def main():
        session = MockSession(block_len=4)
        async with AsyncEngine(Engine(session)) as engine:
            await body(engine)
        assert session.is_closed

    asyncio.run(asyncio.wait_for(main(), 60))


def test_all_prompts_at_once():
    async def body(engine):
        results = await engine.generate(PROMPTS, SamplingParams(max_tokens=9))
        assert [list(result.token_ids) for result in results] == [greedy(p, 9) for p in PROMPTS]

    run(body)


def test_streams_side_by_side_and_a_slow_reader():
    async def follow(engine, prompt, pause):
        tokens = []
        async for delta in engine.stream(prompt, SamplingParams(max_tokens=20)):
            tokens.extend(delta.token_ids)
            await asyncio.sleep(pause)
        return tokens

    async def body(engine):
        pauses = [0.01, 0, 0.002, 0, 0.005]
        found = await asyncio.gather(
            *(follow(engine, p, pause) for p, pause in zip(PROMPTS, pauses, strict=True))
        )
        assert found == [greedy(prompt, 20) for prompt in PROMPTS]

    run(body)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=5, temperature=0.9, n=3, seed=1),  # all end in the same step
        SamplingParams(max_tokens=5, temperature=0.9, n=2, best_of=4, seed=1),
        SamplingParams(max_tokens=5, beam_width=3, n=2),  # ends with one result for both
    ],
)
def test_several_outputs(params):
    async def body(engine):
        expected = Engine(MockSession(block_len=4)).generate([[5, 6]], params)[0]
        (result,) = await engine.generate([[5, 6]], params)
        found = [result, *result.alternatives]
        assert [r.token_ids for r in found] == [
            r.token_ids for r in (expected, *expected.alternatives)
        ]
        if params.num_choices == params.n:
            deltas = [delta async for delta in engine.stream([5, 6], params)]
            ends = {delta.index: delta.result.token_ids for delta in deltas if delta.result}
            told = dict.fromkeys(ends, ())
            for delta in deltas:
                told[delta.index] += delta.token_ids
            assert told == ends and ends[0] == expected.token_ids

    run(body)


def test_leaving_a_stream_frees_its_blocks():
    async def body(engine):
        stream = engine.stream([1, 2], SamplingParams())
        async for delta in stream:
            assert delta.token_ids
            break
        await stream.aclose()
        for _ in range(200):
            stats = await engine.stats()
            if stats.num_running == 0:
                break
            await asyncio.sleep(0.01)
        assert stats.num_running == 0 and stats.num_free_blocks == 64

    run(body)


def test_cancel_gives_what_there_is():
    async def body(engine):
        request = Request([3, 4], SamplingParams())
        seen = []
        async for delta in engine.stream(request):
            seen.extend(delta.token_ids)
            if len(seen) == 3:
                await engine.cancel(request.id)
            last = delta
        assert last.finish is FinishReason.CANCELLED
        assert seen == greedy([3, 4], len(seen)) == list(last.result.token_ids)

    run(body)


def test_errors_come_where_the_request_was_made():
    async def body(engine):
        with pytest.raises(RequestError, match="context is 64"):
            await engine.generate([[1] * 64])
        with pytest.raises(RequestError, match="context is 64"):
            async for _ in engine.stream([1] * 64):
                pass
        (result,) = await engine.generate([[1]], SamplingParams(max_tokens=2))
        assert list(result.token_ids) == greedy([1], 2)

    run(body)


def test_closing_ends_what_runs():
    async def main():
        engine = AsyncEngine(Engine(MockSession(ctx_len=4096)))
        waiting = asyncio.create_task(engine.generate([[1]]))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(engine.close)
        with pytest.raises(RequestError, match="closed"):
            await waiting
        with pytest.raises(RequestError, match="closed"):
            await engine.generate([[1]])

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("begins_first", [False, True])
def test_a_caller_that_is_cancelled_while_it_asks_harms_nobody(begins_first, monkeypatch):
    """A client may go away at any moment, also between asking and being let in."""

    async def body(engine):
        began, gate = threading.Event(), threading.Event()
        add = engine._add

        def slow_add(request, reader):
            began.set()
            assert gate.wait(10)
            add(request, reader)

        monkeypatch.setattr(engine, "_add", slow_add)
        if not begins_first:  # the thread is at something else
            engine._tell(lambda: gate.wait(10) or None)
        tasks = [
            asyncio.create_task(engine.generate([[5]], SamplingParams(max_tokens=50))),
            asyncio.create_task(anext(engine.stream([5], SamplingParams(max_tokens=50)))),
        ]
        await asyncio.sleep(0.01)
        assert began.is_set() == begins_first
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        monkeypatch.setattr(engine, "_add", add)
        gate.set()
        (result,) = await engine.generate([[5]], SamplingParams(max_tokens=9))
        assert list(result.token_ids) == greedy([5], 9)
        stats = await engine.stats()
        assert (stats.num_running, stats.num_waiting) == (0, 0)
        assert stats.num_output_tokens < 30  # nobody went on alone

    run(body)


def test_where_one_prompt_fails_the_others_do_not_go_on():
    async def body(engine):
        with pytest.raises(RequestError, match="context is 64"):
            await engine.generate([[1], [1] * 64, [2]])
        stats = await engine.stats()
        for _ in range(200):
            if stats.num_running + stats.num_waiting == 0:
                break
            await asyncio.sleep(0.005)
            stats = await engine.stats()
        assert stats.num_running + stats.num_waiting == 0
        assert stats.num_output_tokens < 2 * 63
        with pytest.raises(OptionTypeError, match="a list of prompts"):
            await engine.generate("text")

    run(body)


def test_an_output_that_cannot_go_on_is_an_error_as_elsewhere():
    params = SamplingParams(max_tokens=3, bad_token_ids=[[token] for token in range(64)])

    async def body(engine):
        with pytest.raises(RequestError, match="no token may come next"):
            await engine.generate([[1]], params)
        with pytest.raises(RequestError, match="no token may come next"):
            async for _ in engine.stream([1], params):
                pass

    run(body)


def test_a_loop_that_closes_at_any_moment_harms_nobody():
    """A loop may close between the look at it and the call."""

    class Closing:
        def is_closed(self):
            return False

        def call_soon_threadsafe(self, *_):
            raise RuntimeError("Event loop is closed")

    async def body(engine):
        gone = _Reader(Closing(), 1)
        await engine._ask(lambda: engine._add(Request([7], SamplingParams(max_tokens=4)), gone))
        (result,) = await engine.generate([[5]], SamplingParams(max_tokens=9))
        assert list(result.token_ids) == greedy([5], 9)
        assert not engine._readers

    run(body)
