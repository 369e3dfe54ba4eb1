"""Speculation inside the engine: fewer steps, the same tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mock_session import MockSession, answer, greedy

from qeff.core.errors import OptionValueError
from qeff.generate import Engine, Request, SamplingParams
from qeff.generate.drafting import Drafting
from qeff.generate.speculation import SpeculationConfig

PROMPTS = [[5], [1, 2, 3] * 4, [9] * 8, [7, 7, 2, 60], [11, 12] * 9]
KINDS = ["prompt_lookup", "lookahead", "draft", "heads"]


def rhythmic(history, vocab):
    """Logits of a model that repeats itself: mostly the token of four places before."""
    logits = answer(history[-6:], vocab)
    if len(history) > 4:
        logits[history[-4]] += 11
    return logits


def run(kind, prompts, params, *, answers=rhythmic, adaptive=False, **engine):
    session = MockSession(
        supports_trees=True,
        sequences=3,
        chunk=64,
        block_len=8,
        ctx_len=128,
        answers=answers,
        num_heads=3 if kind == "heads" else 0,
    )
    drafting = None
    if kind:
        config = SpeculationConfig(kind=kind, is_adaptive=adaptive, min_confidence=0)
        draft = MockSession(sequences=3, chunk=64, block_len=16, ctx_len=128, answers=answers)
        drafting = Drafting.start(config, session.caps, draft=draft if kind == "draft" else None)
    with Engine(session, drafting=drafting, **engine) as made:
        results = made.generate(prompts, params)
        assert made.stats.num_free_blocks == made._runner._scheduler.cache.blocks.num_blocks
        return [list(result.token_ids) for result in results], made.stats


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=40),
        SamplingParams(max_tokens=40, temperature=0.8, top_p=0.9, seed=3),
        SamplingParams(max_tokens=40, repetition_penalty=1.2, frequency_penalty=0.1),
    ],
)
def test_a_draft_changes_no_token(kind, params):
    plain, slow = run(None, PROMPTS, params)
    found, quick = run(kind, PROMPTS, params)
    assert found == plain
    assert quick.speculation.num_accepted > 0
    if params.is_greedy and not params.has_penalties:
        assert quick.num_steps < 0.7 * slow.num_steps


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**32),
    temperature=st.sampled_from([0.0, 0.7]),
    spare=st.integers(0, 24),
    budget=st.integers(4, 80),
    adaptive=st.booleans(),
    prompts=st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=50), min_size=1, max_size=5),
)
def test_any_drafts_prompts_and_blocks(kind, seed, temperature, spare, budget, adaptive, prompts):
    params = SamplingParams(max_tokens=25, temperature=temperature, seed=seed)
    engine = {"num_blocks": 16 + spare, "max_step_tokens": budget}
    plain, _ = run(None, prompts, params)
    assert run(kind, prompts, params, adaptive=adaptive, **engine)[0] == plain


def test_a_hopeless_source_is_given_up():
    found, stats = run("prompt_lookup", PROMPTS, SamplingParams(max_tokens=100), answers=answer)
    assert found == [greedy(prompt, 100) for prompt in PROMPTS]
    assert stats.speculation.acceptance_rate < 0.2


class Told(Drafting):
    """Steps take the time that is told; counts what is asked."""

    num_asked = num_noted = 0

    def propose(self, tasks, num_other_tokens):
        self.num_asked += 1
        self.seen = [task.sequence.id for task in tasks]
        return super().propose(tasks, num_other_tokens)

    def note_step(self, num_tokens, seconds):
        self.num_noted += 1
        super().note_step(num_tokens, 1 + 0.2 * num_tokens)


def hopeless(kind):
    session = MockSession(
        supports_trees=True, sequences=4, chunk=64, block_len=8, ctx_len=512, answers=answer
    )
    config = SpeculationConfig(kind=kind, min_ngram=1)
    return Engine(session, drafting=Told.start(config, session.caps))


@pytest.mark.parametrize("kind", ["lookahead", "prompt_lookup"])
@pytest.mark.parametrize("num_prompts", [1, 3])
def test_nobody_is_asked_while_no_draft_pays(kind, num_prompts):
    with hopeless(kind) as engine:
        scheduler, drafting = engine._runner._scheduler, engine._drafting
        plan, planned = scheduler._plan, []
        scheduler._plan = lambda drafts: planned.append(drafts) or plan(drafts)
        prompts = [[1, 2, 3, index] for index in range(num_prompts)]
        results = engine.generate(prompts, SamplingParams(max_tokens=400))
        assert [list(r.token_ids) for r in results] == [greedy(prompt, 400) for prompt in prompts]
        steps = engine.stats.num_steps
        report = engine.stats.speculation
        assert report.num_steps == steps > 350  # those that nobody saw are counted too
        assert drafting.num_asked < 0.25 * steps and drafting.num_noted < 0.3 * steps
        assert len(planned) < 0.25 * steps  # the others repeat the step before
        assert 2 < report.num_drafts < 0.2 * steps  # it goes on trying


def test_a_rest_ends_when_somebody_comes():
    with hopeless("lookahead") as engine:
        drafting = engine._drafting
        engine.add(Request([1, 2, 3], SamplingParams(max_tokens=400), id="a"))
        while drafting._num_left < 8:
            engine.step()
        engine.add(Request([4, 5], SamplingParams(max_tokens=9), id="b"))
        num_asked = drafting.num_asked
        engine.step()  # reads the prompt
        assert drafting.num_asked == num_asked + 1 and drafting.seen == ["a/0"]
        engine.step()
        assert drafting.num_asked == num_asked + 2 and drafting.seen == ["a/0", "b/0"]
        assert engine.stats.speculation.num_steps == engine.stats.num_steps


def test_trees_need_a_session_that_runs_them():
    with pytest.raises(OptionValueError, match="runs no trees"):
        Drafting.start(SpeculationConfig(kind="lookahead"), MockSession().caps)


def test_heads_need_a_model_that_brings_them():
    with pytest.raises(OptionValueError, match="no heads") as caught:
        Drafting.start(SpeculationConfig(kind="heads"), MockSession().caps)
    assert "turbo" in caught.value.hint
    drafting = Drafting.start(SpeculationConfig(kind="heads"), MockSession(num_heads=3).caps)
    assert drafting.governor.max_tokens == 3
    config = SpeculationConfig(kind="heads", num_tokens=2)
    assert Drafting.start(config, MockSession(num_heads=3).caps).governor.max_tokens == 2


def test_guesses_of_heads_are_good_for_one_step():
    found, stats = run("heads", PROMPTS, SamplingParams(max_tokens=60), answers=answer)
    assert found == [greedy(prompt, 60) for prompt in PROMPTS]
    assert stats.speculation.acceptance_rate > 0.4  # where no other source finds anything
    assert stats.num_steps < 0.6 * run(None, PROMPTS, SamplingParams(max_tokens=60))[1].num_steps


def test_logprobs_are_those_of_plain_decoding():
    params = SamplingParams(max_tokens=20, logprobs=2, prompt_logprobs=1)
    results = []
    for kind in (None, "prompt_lookup", "lookahead"):
        session = MockSession(supports_trees=True, chunk=5, answers=rhythmic)
        drafting = kind and Drafting.start(
            SpeculationConfig(kind=kind, is_adaptive=False), session.caps
        )
        results.append(Engine(session, drafting=drafting or None).generate(PROMPTS, params))
    for result, prompt in zip(results[0], PROMPTS, strict=True):
        assert [choice.token for choice in result.prompt_logprobs] == prompt
        for place in range(1, len(prompt)):
            logits = rhythmic(prompt[:place], 64).astype(np.float64)
            expected = logits[prompt[place]] - np.log(np.exp(logits).sum())
            assert result.prompt_logprobs[place].logprob == pytest.approx(expected, abs=1e-5)
    for other in results[1:]:
        assert [r.logprobs for r in other] == [r.logprobs for r in results[0]]
        assert [r.prompt_logprobs for r in other] == [r.prompt_logprobs for r in results[0]]
