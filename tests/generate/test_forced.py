"""Tokens that a constraint forces take no steps of their own, and are those of plain decoding."""

from __future__ import annotations

import json

import pytest
from mock_session import MockSession
from tiny_tokenizers import KINDS, text_files

from qeff.generate import Engine, FinishReason, Request, SamplingParams, Text
from qeff.generate.constraint import Constraint, Matcher
from qeff.generate.drafting import Drafting
from qeff.generate.speculation import SpeculationConfig

TEXT = Text(text_files(KINDS["byte_level"]()))
SCHEMA = {
    "type": "object",
    "properties": {
        "the quick brown fox": {"type": "integer", "minimum": 0, "maximum": 9},
        "the lazy dog": {"enum": ["jumps over the world", "hello there"]},
    },
    "required": ["the quick brown fox", "the lazy dog"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
PARAMS = [
    SamplingParams(max_tokens=90),
    SamplingParams(max_tokens=90, temperature=0.9, top_p=0.9, seed=5),
    SamplingParams(max_tokens=90, repetition_penalty=1.3, logprobs=2, min_tokens=20),
    SamplingParams(max_tokens=21, stop=("brown",)),
]


def requests(params):
    constraints = [Constraint.json_schema(SCHEMA), None, Constraint.choice(["hello world", "the"])]
    return [
        Request([7, 8, 9, 7, 8, index], params, constraint=one)
        for index, one in enumerate(constraints)
    ]


def run(params, kind=None, chunk=32):
    session = MockSession(
        vocab=TEXT.tokenizer.get_vocab_size() + 5,
        ctx_len=128,
        block_len=8,
        chunk=chunk,
        supports_trees=True,
    )
    drafting = None
    if kind:
        config = SpeculationConfig(kind=kind, is_adaptive=False)
        drafting = Drafting.start(config, session.caps)
    with Engine(session, TEXT, drafting=drafting) as engine:
        results = engine.generate(requests(params))
        return results, engine.stats


def plain(results):
    return [(r.token_ids, r.text, r.finish, r.logprobs) for r in results]


@pytest.mark.parametrize("kind", [None, "prompt_lookup", "lookahead"])
@pytest.mark.parametrize("params", PARAMS)
def test_forced_tokens_change_nothing_but_the_steps(kind, params, monkeypatch):
    forced, quick = run(params, kind)
    monkeypatch.setattr(Matcher, "forced", lambda _: [])
    asked, slow = run(params, kind)
    assert plain(forced) == plain(asked)
    assert forced[0].num_forced > 4 and forced[1].num_forced == asked[0].num_forced == 0
    assert quick.num_steps <= slow.num_steps
    if kind is None:
        assert quick.num_output_tokens == slow.num_output_tokens
        assert all(result.num_drafted == 0 for result in forced)
    else:
        drafted = sum(result.num_accepted for result in forced)
        assert quick.speculation.num_accepted == drafted  # what was forced is no guess


def test_a_schema_takes_few_steps():
    results, _ = run(SamplingParams(max_tokens=90))
    json.loads(results[0].text)
    alone = Engine(MockSession(vocab=TEXT.tokenizer.get_vocab_size(), ctx_len=128, chunk=64), TEXT)
    result = alone.generate(requests(SamplingParams(max_tokens=90))[:1])[0]
    assert alone.stats.num_steps == len(result.token_ids) - result.num_forced
    assert result.num_forced > 0.7 * len(result.token_ids)


def test_one_token_at_a_time_leaves_no_room(monkeypatch):
    monkeypatch.setattr(Matcher, "forced", lambda _: pytest.fail("nobody can use them"))
    results, _ = run(SamplingParams(max_tokens=40), chunk=1)
    assert results[0].num_forced == 0
    assert results[2].text in ("hello world", "the")


@pytest.mark.parametrize("beam_width", [0, 2])
def test_an_output_that_is_whole_is_not_called_too_long(beam_width):
    constraint = Constraint.choice(["hello world"])
    count = len(TEXT.encode("hello world"))

    def finish(max_tokens, num_prompt):
        session = MockSession(vocab=TEXT.vocab_size, ctx_len=32, chunk=32)
        params = SamplingParams(max_tokens=max_tokens, beam_width=beam_width)
        request = Request([7] * num_prompt, params, constraint=constraint)
        return Engine(session, TEXT).generate([request])[0].finish

    assert finish(count, 3) is finish(None, 32 - count) is FinishReason.STOP
    assert finish(count - 1, 3) is FinishReason.LENGTH
    assert finish(None, 33 - count) is FinishReason.CONTEXT
