"""Corners of scheduling and of the cache that random loads have to be lucky to reach."""

from __future__ import annotations

import pytest
from mock_session import MockSession, greedy

from qeff.generate import Engine, Request, SamplingParams

LONG = [place * 7 % 64 for place in range(60)]


def test_the_only_free_block_holds_what_could_be_copied():
    engine = Engine(MockSession(block_len=8, chunk=64), num_blocks=8)  # one context
    engine.generate([LONG], SamplingParams(max_tokens=4))
    again = [*LONG, 9]  # seven blocks and a part of the eighth, which must be taken itself
    result = engine.generate([again], SamplingParams(max_tokens=3))[0]
    assert list(result.token_ids) == greedy(again, 3)
    assert result.num_cached_tokens == 56


def test_one_that_gives_way_to_a_more_urgent_one_leaves_its_tokens():
    engine = Engine(MockSession(block_len=4, sequences=1), max_step_tokens=1)
    engine.add(Request([1, 2, 3], SamplingParams(max_tokens=9), id="slow"))
    for _ in range(5):
        engine.step()
    engine.add(Request([4, 5], SamplingParams(max_tokens=2), id="urgent", priority=-1))
    ended = []
    while engine.has_work:
        ended += [(delta.request_id, delta.result) for delta in engine.step() if delta.result]
    assert [name for name, _ in ended] == ["urgent", "slow"]
    assert [list(r.token_ids) for _, r in ended] == [greedy([4, 5], 2), greedy([1, 2, 3], 9)]


@pytest.mark.parametrize("budget", [1, 2, 3])
def test_a_beam_that_grows_is_not_held_up_by_beams_that_wait_for_it(budget):
    params = SamplingParams(max_tokens=20, beam_width=4)
    tight = Engine(
        MockSession(block_len=4, sequences=8, chunk=64), num_blocks=16, max_step_tokens=budget
    )
    roomy = Engine(MockSession(block_len=4, sequences=8, chunk=64))
    prompt = list(range(40))
    expected = roomy.generate([prompt], params)[0]
    assert tight.generate([prompt], params)[0].token_ids == expected.token_ids
    assert tight.stats.num_preemptions > 0


def test_prompt_logprobs_survive_being_pushed_out_in_the_middle_of_the_prompt():
    params = SamplingParams(max_tokens=2, prompt_logprobs=1)
    alone = Engine(MockSession(block_len=4)).generate([LONG[:40]], params)[0]
    engine = Engine(
        MockSession(block_len=4, sequences=3, chunk=64), num_blocks=16, max_step_tokens=7
    )
    # Beside a decode the prompt is read in pieces of six tokens, and later, alone, of seven.
    engine.add(Request([1], SamplingParams(max_tokens=4), id="beside"))
    engine.add(Request(LONG[:40], params, id="scored"))
    for _ in range(3):
        engine.step()
    engine.add(Request(LONG[20:50], SamplingParams(max_tokens=5), id="urgent", priority=-1))
    results = {}
    while engine.has_work:
        results |= {delta.request_id: delta.result for delta in engine.step() if delta.result}
    assert engine.stats.num_preemptions > 0
    assert results["scored"].prompt_logprobs == alone.prompt_logprobs
    assert len(alone.prompt_logprobs) == 40
