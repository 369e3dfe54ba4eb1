"""Beam search against transformers' own, and against a search over all outputs."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from mock_session import MockSession, answer
from tiny_tokenizers import KINDS, text_files

from qeff.generate import Engine, FinishReason, SamplingParams, Text

VOCAB = 12


def logprobs(history):
    logits = answer(history, VOCAB).astype(np.float64)
    return logits - np.log(np.exp(logits).sum())


def score_of(prompt, tokens):
    return sum(logprobs([*prompt, *tokens[:place]])[token] for place, token in enumerate(tokens))


def engine(**settings):
    return Engine(MockSession(vocab=VOCAB, block_len=4, sequences=8, **settings))


def test_a_wide_search_finds_the_likeliest_output():
    prompt = [3, 1]
    outputs = itertools.product(range(VOCAB), repeat=3)
    best = max(outputs, key=lambda tokens: score_of(prompt, tokens))
    params = SamplingParams(max_tokens=3, beam_width=144, n=3)
    result = engine().generate([prompt], params)[0]
    assert result.token_ids == best
    assert result.cumulative_logprob == pytest.approx(score_of(prompt, best), abs=1e-5)
    scores = [result.cumulative_logprob, *(r.cumulative_logprob for r in result.alternatives)]
    assert len(scores) == 3 and scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("settings", [{}, {"early_stopping": True}, {"length_penalty": 0.0}])
def test_the_search_is_that_of_transformers(width, settings):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")

    class Model(transformers.GenerationMixin, torch.nn.Module):
        main_input_name = "input_ids"
        _is_stateful = False

        def __init__(self):
            super().__init__()
            self.config = transformers.PretrainedConfig(vocab_size=VOCAB)
            self.generation_config = transformers.GenerationConfig(eos_token_id=2, pad_token_id=0)

        device = torch.device("cpu")
        dtype = torch.float32

        def can_generate(self):
            return True

        def prepare_inputs_for_generation(self, input_ids, **_):
            return {"input_ids": input_ids}

        def forward(self, input_ids, **_):
            rows = [answer(row.tolist(), VOCAB) for row in input_ids]
            logits = torch.tensor(np.stack(rows))[:, None]
            return transformers.modeling_outputs.CausalLMOutput(logits=logits)

    for prompt in ([5], [1, 4, 3], [7, 7]):
        expected = (
            Model()
            .generate(
                torch.tensor([prompt]),
                num_beams=width,
                max_new_tokens=12,
                do_sample=False,
                use_cache=False,
                **({"length_penalty": 1.0} | settings),
            )[0, len(prompt) :]
            .tolist()
        )
        params = SamplingParams(max_tokens=12, beam_width=width, **settings)
        found = Engine(MockSession(vocab=VOCAB, block_len=4, sequences=8), eos_ids=[2]).generate(
            [prompt], params
        )[0]
        assert list(found.token_ids) == expected


def test_one_beam_is_greedy():
    one = engine().generate([[3, 1]], SamplingParams(max_tokens=9, beam_width=1))[0]
    assert one.token_ids == engine().generate([[3, 1]], SamplingParams(max_tokens=9))[0].token_ids


@pytest.mark.parametrize("places", [1, 2, 3, 8])
def test_any_number_of_places_and_blocks_gives_the_same(places):
    params = SamplingParams(max_tokens=10, beam_width=4, n=2)
    prompts = [[5], [1, 2, 3], list(range(9))]
    roomy = Engine(MockSession(vocab=VOCAB, block_len=4, sequences=16))
    tight = Engine(MockSession(vocab=VOCAB, block_len=4, sequences=places), num_blocks=16)
    expected, found = roomy.generate(prompts, params), tight.generate(prompts, params)
    for one, other in zip(expected, found, strict=True):
        assert one.token_ids == other.token_ids
        assert one.alternatives[0].token_ids == other.alternatives[0].token_ids
    assert tight.stats.num_free_blocks == 16
    beside = tight.generate([[4, 4]], SamplingParams(max_tokens=5))[0]
    assert beside.finish is FinishReason.LENGTH


def test_a_search_can_be_cancelled():
    made = engine()
    request = made.request([3, 1], SamplingParams(max_tokens=30, beam_width=4))
    made.add(request)
    for _ in range(5):
        made.step()
    result = made.cancel(request.id)
    assert result.finish is FinishReason.CANCELLED and len(result.token_ids) == 5
    assert not made.has_work and made.stats.num_free_blocks == 8 * 16


def test_a_cancelled_search_gives_its_beams_and_no_earlier_ending():
    made = Engine(MockSession(vocab=VOCAB, block_len=4, sequences=8), eos_ids=range(6))
    params = SamplingParams(max_tokens=30, beam_width=4, n=2, length_penalty=2.0)
    request = made.request([3, 1], params)
    made.add(request)
    search = made._runner._searches[request.id]
    num_steps = 0
    while len(search._endings) < params.n:
        assert made.step() == []
        num_steps += 1
    beams = sorted(search._beams, key=lambda beam: -beam.score)
    result = made.cancel(request.id)
    for found, beam in zip((result, *result.alternatives), beams, strict=False):
        assert found.finish is FinishReason.CANCELLED and len(found.token_ids) == num_steps
        assert found.cumulative_logprob == beam.score
    assert result.alternatives[0].index == 1
    assert not made.has_work


def test_a_search_tells_what_it_had_of_its_prompt():
    made = engine()
    prompt = [index % VOCAB for index in range(23)]
    params = SamplingParams(max_tokens=4, beam_width=3, n=2)
    first = made.generate([prompt], params)[0]
    assert first.num_cached_tokens == 0
    again = made.generate([prompt], params)[0]
    assert [r.num_cached_tokens for r in (again, *again.alternatives)] == [20, 20]  # whole blocks
    assert again.token_ids == first.token_ids
    assert made.stats.num_reused_tokens == 20
    assert made.generate([prompt[:9]], params)[0].num_cached_tokens == 8


def test_a_cached_prompt_is_counted_once_however_often_it_is_pushed_out():
    session = MockSession(vocab=VOCAB, block_len=4, sequences=8)
    made = Engine(session, num_blocks=16)
    made.generate([[1, 2, 3, 4, 5]], SamplingParams(max_tokens=1))
    prompts = [[1, 2, 3, 4, index] for index in range(3)]
    results = made.generate(prompts, SamplingParams(max_tokens=50))
    assert made.stats.num_preemptions > 0
    assert [result.num_cached_tokens for result in results] == [4, 4, 4]


def test_a_search_that_cannot_go_on_ends_alone():
    made = engine()
    bad = SamplingParams(max_tokens=9, beam_width=3, bad_token_ids=[[t] for t in range(VOCAB)])
    made.add(made.request([3, 1], bad))
    made.add(made.request([3, 1], SamplingParams(max_tokens=9)))
    results = []
    while made.has_work:
        results += [delta.result for delta in made.step() if delta.result]
    assert [result.finish for result in results] == [FinishReason.ERROR, FinishReason.LENGTH]
    assert "no beam can go on" in str(results[0].error)
    assert made.stats.num_free_blocks == 8 * 16


def test_log_probabilities_are_those_of_other_requests():
    params = SamplingParams(max_tokens=5, beam_width=3, n=2, logprobs=2, prompt_logprobs=3)
    prompt = [3, 1, 4, 1, 5, 9]
    (found,) = engine(chunk=4).generate([prompt], params)
    for output in (found, *found.alternatives):
        whole = [*prompt, *output.token_ids]
        scored = SamplingParams(max_tokens=1, prompt_logprobs=3)
        (expected,) = engine().generate([whole], scored)
        assert output.prompt_logprobs == expected.prompt_logprobs[: len(prompt)]
        for one, other in zip(
            output.logprobs, expected.prompt_logprobs[len(prompt) :], strict=True
        ):
            assert (one.token, one.logprob, one.top) == (other.token, other.logprob, other.top[:2])
    biased = replace(params, logit_bias={found.token_ids[0]: 5.0}, repetition_penalty=1.3)
    (other,) = engine().generate([prompt], biased)
    assert other.logprobs[0].logprob == pytest.approx(
        logprobs(prompt)[other.token_ids[0]], abs=1e-5
    )
    assert other.cumulative_logprob == sum(choice.logprob for choice in other.logprobs)


@pytest.mark.parametrize("kind", KINDS)
def test_one_beam_and_several_read_their_tokens_alike(kind):
    """Stop strings count from min_tokens on, the first that is complete, and a space is kept."""
    text = Text(text_files(KINDS[kind]()))
    prompt = text.encode("ab", add_special_tokens=False)
    said = text.encode("ab the the quick world", add_special_tokens=False)[len(prompt) :]

    def answers(history, vocab):
        logits = np.zeros(vocab, np.float32)
        logits[said[(len(history) - len(prompt)) % len(said)]] = 20
        return logits

    for params in (
        {},
        {"stop": ["he"]},
        {"stop": ["he"], "min_tokens": 3},
        {"stop": ["the world", "e"]},
        {"stop": ["e", " the"]},
    ):
        one, several = (
            Engine(MockSession(vocab=text.vocab_size, answers=answers), text).generate(
                [prompt], SamplingParams(max_tokens=len(said), beam_width=width, **params)
            )[0]
            for width in (0, 2)
        )
        found = (several.token_ids, several.text, several.finish)
        assert found == (one.token_ids, one.text, one.finish), params
