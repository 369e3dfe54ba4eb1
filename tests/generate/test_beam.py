"""Beam search against transformers' own, and against a search over all outputs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from mock_session import MockSession, answer

from qeff.generate import Engine, FinishReason, SamplingParams

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
