"""The engine against a session whose answer depends on every token it can read back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mock_session import MockSession, choose, greedy

from qeff.core.errors import OptionTypeError, RequestError, ResourceError
from qeff.generate import Engine, FinishReason, Request, SamplingParams

PROMPTS = [[5], [1, 2, 3], list(range(20, 37)), [9] * 8, [7, 7, 2, 60], list(range(30)), [11, 12]]
SAMPLED = SamplingParams(max_tokens=10, temperature=0.9, top_k=20, top_p=0.95, seed=1234)


def tokens_of(results):
    return [list(result.token_ids) for result in results]


def alone(prompts, params, **session):
    return [
        tokens_of(Engine(MockSession(sequences=1, **session)).generate([prompt], params))[0]
        for prompt in prompts
    ]


def test_greedy_tokens_are_those_of_the_plain_loop():
    results = Engine(MockSession()).generate(PROMPTS, SamplingParams(max_tokens=12))
    assert tokens_of(results) == [greedy(prompt, 12) for prompt in PROMPTS]
    assert [result.prompt for result in results] == [tuple(prompt) for prompt in PROMPTS]
    assert {result.finish for result in results} == {FinishReason.LENGTH}


@pytest.mark.parametrize("params", [SamplingParams(max_tokens=10), SAMPLED])
def test_same_tokens_alone_and_in_a_batch(params):
    together = Engine(MockSession(sequences=7)).generate(PROMPTS, params)
    assert tokens_of(together) == alone(PROMPTS, params)


@settings(max_examples=60, deadline=None)
@given(
    chunk=st.integers(1, 40),
    block_len=st.sampled_from([1, 3, 4, 16, 64]),
    sequences=st.integers(1, 7),
    budget=st.integers(1, 50),
    spare=st.integers(0, 20),
)
def test_any_chunks_blocks_and_budgets_give_the_same_tokens(
    chunk, block_len, sequences, budget, spare
):
    session = MockSession(block_len=block_len, sequences=sequences, chunk=chunk)
    num_blocks = -(-64 // block_len) + spare  # from one full context on: preemption included
    engine = Engine(session, num_blocks=num_blocks, max_step_tokens=budget)
    results = engine.generate(PROMPTS, SamplingParams(max_tokens=9))
    assert tokens_of(results) == [greedy(prompt, 9) for prompt in PROMPTS]
    assert max(session.step_sizes) <= budget
    assert engine.stats.num_free_blocks == num_blocks
    assert not engine.has_work


def test_preemption_recomputes_and_changes_nothing():
    prompts = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    params = SamplingParams(max_tokens=50, temperature=1.0, seed=7)
    engine = Engine(MockSession(block_len=4), num_blocks=16)
    results = engine.generate(prompts, params)
    assert engine.stats.num_preemptions > 0
    assert engine.stats.num_step_tokens > sum(3 + 49 for _ in prompts)  # some ran twice
    assert tokens_of(results) == alone(prompts, params)
    roomy = Engine(MockSession(block_len=4))
    assert tokens_of(roomy.generate(prompts, params)) == tokens_of(results)
    assert roomy.stats.num_preemptions == 0
    assert roomy.stats.num_step_tokens == sum(3 + 49 for _ in prompts)


def test_decodes_go_on_while_a_long_prompt_is_read():
    engine = Engine(MockSession(chunk=4), max_step_tokens=5)
    short = engine.add(Request([1], SamplingParams(max_tokens=20)))
    engine.step()
    engine.add(Request(list(range(40)), SamplingParams(max_tokens=1)))
    ids = [[delta.request_id for delta in engine.step()] for _ in range(8)]
    assert ids == [[short]] * 8  # a token in each step, beside the chunks


def test_more_prompts_than_places_all_finish_in_order():
    prompts = [[index] for index in range(23)]
    engine = Engine(MockSession(sequences=3))
    results = engine.generate(prompts, SamplingParams(max_tokens=5))
    assert tokens_of(results) == [greedy(prompt, 5) for prompt in prompts]


def test_the_context_ends_a_request():
    prompt = list(range(60))
    result = Engine(MockSession()).generate([prompt])[0]
    assert result.finish is FinishReason.CONTEXT
    assert list(result.token_ids) == greedy(prompt, 4)  # 60 + 4 = 64 = ctx_len
    exact = Engine(MockSession()).generate([prompt], SamplingParams(max_tokens=4))[0]
    assert exact.finish is FinishReason.LENGTH


@pytest.mark.parametrize("length", [64, 65, 1000])
def test_a_prompt_that_does_not_fit_is_refused_before_anything_runs(length):
    session = MockSession()
    engine = Engine(session)
    with pytest.raises(RequestError, match=f"prompt has {length} tokens, context is 64") as caught:
        engine.generate([[1, 2], [3] * length])
    assert "--ctx-len" in caught.value.hint
    assert session.step_sizes == [] and not engine.has_work
    assert tokens_of(engine.generate([[1]], SamplingParams(max_tokens=2))) == [greedy([1], 2)]


def test_bad_requests_are_refused():
    engine = Engine(MockSession())
    with pytest.raises(RequestError, match="empty"):
        engine.generate([[]])
    with pytest.raises(RequestError, match="token id 64 is not in the model's vocabulary of 64"):
        engine.generate([[1, 64]])
    with pytest.raises(RequestError, match="token id 70 is not in the model's") as caught:
        engine.generate([[1]], SamplingParams(logit_bias={70: 1.0}))
    assert caught.value.hint == "a sampling setting names it"
    for constraint in ({"type": "object"}, "[0-9]+", ["a", "b"]):
        with pytest.raises(OptionTypeError, match="constraint must be a Constraint, not"):
            engine.add(Request([1], constraint=constraint))
    with pytest.raises(RequestError, match="no tokenizer"):
        engine.generate(["text"])
    with pytest.raises(RequestError, match="stop strings need a tokenizer"):
        engine.generate([[1]], SamplingParams(stop=("x",)))
    with pytest.raises(OptionTypeError, match="a list of prompts"):
        engine.generate("text")
    engine.add(Request([1], id="a"))
    with pytest.raises(RequestError, match="'a' is running"):
        engine.add(Request([1], id="a"))
    with pytest.raises(ResourceError, match="15 cache blocks do not hold"):
        Engine(MockSession(block_len=4), num_blocks=15)
    with pytest.raises(ResourceError, match="reserve at least 16"):
        Engine(MockSession(block_len=4, max_blocks=12))


def test_end_and_stop_tokens():
    expected = greedy([5], 20)
    end = expected[6]
    first = expected.index(end) + 1
    result = Engine(MockSession(), eos_ids=[end]).generate([[5]])[0]
    assert (list(result.token_ids), result.finish) == (expected[:first], FinishReason.EOS)
    params = SamplingParams(stop_token_ids=(end,))
    result = Engine(MockSession()).generate([[5]], params)[0]
    assert (list(result.token_ids), result.finish) == (expected[:first], FinishReason.STOP)
    params = SamplingParams(ignore_eos=True, max_tokens=20)
    result = Engine(MockSession(), eos_ids=[end]).generate([[5]], params)[0]
    assert (list(result.token_ids), result.finish) == (expected, FinishReason.LENGTH)


def test_min_tokens_puts_the_end_off():
    end = greedy([5], 1)[0]
    params = SamplingParams(min_tokens=4, max_tokens=9)
    result = Engine(MockSession(), eos_ids=[end]).generate([[5]], params)[0]
    assert end not in result.token_ids[:4] and len(result.token_ids) >= 4
    assert len(Engine(MockSession(), eos_ids=[end]).generate([[5]])[0].token_ids) == 1


def test_seeds():
    def run(seed):
        params = SamplingParams(max_tokens=16, temperature=1.0, seed=seed)
        return tokens_of(Engine(MockSession()).generate([[1, 2]], params))[0]

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert run(None) != run(None)


def test_stream_gives_the_tokens_one_by_one_and_beside_others():
    engine = Engine(MockSession())
    first = engine.stream([1, 2], SamplingParams(max_tokens=6))
    second = engine.stream([3], SamplingParams(max_tokens=4))
    plain = engine.add(Request([8], SamplingParams(max_tokens=3)))
    head = [next(first), next(first)]
    deltas = [*head, *first]
    assert [token for delta in deltas for token in delta.token_ids] == greedy([1, 2], 6)
    assert [delta.finish for delta in deltas] == [None] * 5 + [FinishReason.LENGTH]
    assert list(deltas[-1].result.token_ids) == greedy([1, 2], 6)
    assert [token for delta in second for token in delta.token_ids] == greedy([3], 4)
    unread = engine.step()  # what nobody followed is kept for step()
    assert {delta.request_id for delta in unread} == {plain}
    assert [token for delta in unread for token in delta.token_ids] == greedy([8], 3)
    assert not engine.has_work and engine.step() == []


def test_cancel_frees_blocks_and_leaves_others_alone():
    engine = Engine(MockSession(block_len=4))
    kept = engine.stream([1, 2], SamplingParams(max_tokens=8))
    dropped = engine.add(Request([3]))
    waiting = [engine.add(Request([4])) for _ in range(5)]
    for _ in range(3):
        next(kept)
    result = engine.cancel(dropped)
    assert (result.finish, list(result.token_ids)) == (FinishReason.CANCELLED, greedy([3], 3))
    assert [engine.cancel(one).finish for one in waiting] == [FinishReason.CANCELLED] * 5
    assert engine.cancel(dropped) is None
    rest = [token for delta in kept for token in delta.token_ids]
    assert rest == greedy([1, 2], 8)[3:]
    assert engine.stats.num_free_blocks == 64


def test_a_closed_engine_takes_nothing_more():
    session = MockSession()
    engine = Engine(session)
    stream = engine.stream([1])
    next(stream)
    engine.close()
    engine.close()
    assert session.is_closed and [delta.finish for delta in stream] == [FinishReason.CANCELLED]
    num_steps = len(session.step_sizes)
    for ask in (engine.stream, lambda prompt: engine.generate([prompt])):
        with pytest.raises(RequestError, match="the engine was closed"):
            ask([1])
    assert engine.step() == [] and len(session.step_sizes) == num_steps


def test_giving_a_stream_up_cancels_it_and_cancelling_ends_a_stream():
    engine = Engine(MockSession())
    for has_begun in (True, False):  # also where nobody has read from it
        stream = engine.stream([1])
        if has_begun:
            next(stream)
        stream.close()
        assert not engine.has_work and not engine._mailboxes
    assert not engine.has_work and engine.stats.num_free_blocks == 4
    stream = engine.stream(Request([1], id="b"))
    next(stream)
    engine.cancel("b")
    assert [delta.finish for delta in stream] == [FinishReason.CANCELLED]


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1.0, seed=1)])
@pytest.mark.parametrize("num_good", [0, 1, 5])
def test_a_failing_step_leaves_a_usable_engine(monkeypatch, params, num_good):
    session = MockSession()
    engine = Engine(session)
    step = session.step

    def broken(batch):
        output = step(batch)
        if len(session.step_sizes) <= num_good:
            return output
        logits = np.full((len(batch.logit_rows), session.caps.vocab_size), np.nan, np.float32)
        return choose(logits, batch.choices)

    monkeypatch.setattr(session, "step", broken)
    with pytest.raises(RequestError, match="not finite numbers"):
        engine.generate(PROMPTS, params)
    monkeypatch.undo()
    assert not engine.has_work and engine.stats.num_free_blocks == 4
    assert tokens_of(engine.generate([[5]], SamplingParams(max_tokens=3))) == [greedy([5], 3)]


def test_stats_timings_and_close():
    session = MockSession()
    with Engine(session) as engine:
        result = engine.generate([list(range(20))], SamplingParams(max_tokens=5))[0]
        stats = engine.stats
        engine.add(Request([1]))
    assert (stats.num_steps, stats.num_step_tokens, stats.num_output_tokens) == (3 + 4, 24, 5)
    assert (stats.num_running, stats.num_waiting, stats.num_preemptions) == (0, 0, 0)
    times = result.timings
    assert times.prefill_s > 0 and times.decode_s > 0 and times.queue_s >= 0
    assert times.total_s == pytest.approx(times.ttft_s + times.decode_s)
    assert result.decode_tokens_per_s == pytest.approx(4 / times.decode_s)
    assert session.is_closed and not engine.has_work
