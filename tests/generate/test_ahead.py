"""Steps that are begun before the last one's tokens are known give the same tokens."""

from __future__ import annotations

import pytest
from mock_session import MockSession, greedy

from qeff.core.errors import ResourceError
from qeff.generate import Engine, FinishReason, Request, SamplingParams

PROMPTS = [[3, 5, 7], [11, 2], [40, 41, 42, 43]]


def engine_of(**more) -> Engine:
    session = MockSession(block_len=4, supports_trees=True, overlaps=True, **more)
    return Engine(session, eos_ids=())


def finish(engine: Engine) -> dict[str, tuple[int, ...]]:
    results = {}
    while engine.has_work:
        for delta in engine.step():
            if delta.result:
                results[delta.request_id] = delta.result.token_ids
    return results


def test_tokens_are_those_of_steps_one_by_one():
    engine = engine_of()
    results = engine.generate(PROMPTS, SamplingParams(max_tokens=12))
    assert [list(r.token_ids) for r in results] == [greedy(p, 12) for p in PROMPTS]
    assert engine.session.num_begun > 5
    assert engine.stats.num_free_blocks == engine._runner._scheduler.cache.blocks.num_blocks


def test_no_step_runs_for_sequences_that_are_full():
    engine = engine_of()
    engine.generate([PROMPTS[0]], SamplingParams(max_tokens=9))
    assert engine.session.step_sizes == [3] + [1] * 8


def test_drawn_tokens_are_the_same():
    params = SamplingParams(max_tokens=12, temperature=0.9, top_k=9, seed=5)
    ahead = engine_of().generate(PROMPTS, params)
    plain = Engine(MockSession(block_len=4), eos_ids=()).generate(PROMPTS, params)
    assert [r.token_ids for r in ahead] == [r.token_ids for r in plain]


def test_one_that_ends_early_leaves_the_others_alone():
    expected = [greedy(p, 14) for p in PROMPTS]
    stop = expected[1][5]
    assert stop not in expected[1][:5]
    engine = engine_of()
    for number, prompt in enumerate(PROMPTS):
        ids = (stop,) if number == 1 else ()
        params = SamplingParams(max_tokens=14, stop_token_ids=ids)
        engine.add(Request(tuple(prompt), params, id=str(number)))
    results = finish(engine)
    assert list(results["1"]) == expected[1][:6]
    assert list(results["0"]) == expected[0] and list(results["2"]) == expected[2]


def test_requests_come_and_go_while_a_step_is_on_its_way():
    engine = engine_of()
    for number in (0, 1):
        engine.add(Request(tuple(PROMPTS[number]), SamplingParams(max_tokens=20), id=str(number)))
    for _ in range(6):
        engine.step()
    assert engine._runner._ahead is not None
    cancelled = engine.cancel("0")
    assert cancelled is not None and cancelled.finish is FinishReason.CANCELLED
    assert list(cancelled.token_ids) == greedy(PROMPTS[0], 6)
    engine.add(Request(tuple(PROMPTS[2]), SamplingParams(max_tokens=8), id="2"))
    results = finish(engine)
    assert list(results["1"]) == greedy(PROMPTS[1], 20)
    assert list(results["2"]) == greedy(PROMPTS[2], 8)


def test_a_step_that_fails_does_not_count():
    engine = engine_of()
    engine.add(Request(tuple(PROMPTS[0]), SamplingParams(max_tokens=10), id="0"))
    for _ in range(4):
        engine.step()
    ahead = engine._runner._ahead
    assert ahead is not None

    def fail():
        raise ResourceError("no memory", "lower something")

    ahead.begun.result = fail
    with pytest.raises(ResourceError, match="no memory"):
        engine.step()
    assert list(finish(engine)["0"]) == greedy(PROMPTS[0], 10)
