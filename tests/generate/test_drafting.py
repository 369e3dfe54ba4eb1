"""Speculation inside the engine: fewer steps, the same tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mock_session import MockSession, answer, greedy

from qeff.core.errors import OptionValueError
from qeff.generate import Engine, SamplingParams
from qeff.generate.drafting import Drafting
from qeff.generate.speculation import SpeculationConfig

PROMPTS = [[5], [1, 2, 3] * 4, [9] * 8, [7, 7, 2, 60], [11, 12] * 9]
KINDS = ["prompt_lookup", "lookahead", "draft"]


def rhythmic(history, vocab):
    """Logits of a model that repeats itself: mostly the token of four places before."""
    logits = answer(history[-6:], vocab)
    if len(history) > 4:
        logits[history[-4]] += 11
    return logits


def run(kind, prompts, params, *, answers=rhythmic, adaptive=False, **engine):
    session = MockSession(
        supports_trees=True, sequences=3, chunk=64, block_len=8, ctx_len=128, answers=answers
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


def test_trees_need_a_session_that_runs_them():
    with pytest.raises(OptionValueError, match="runs no trees"):
        Drafting.start(SpeculationConfig(kind="lookahead"), MockSession().caps)


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
