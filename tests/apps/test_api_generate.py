"""The Python class over the engine: speculation, constraints, several outputs, streams."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from pathlib import Path

import pytest

import qeff
from qeff.generate.outputs import combine

PROMPT = "my name is my name is my name is"
LENGTH = {"generation_len": 10, "ignore_eos": True}
SAMPLED = {"temperature": 1.2, "seed": 8}


def compiled(tiny: Path, **loading) -> qeff.QEFFAutoModelForCausalLM:
    model = qeff.QEFFAutoModelForCausalLM.from_pretrained(str(tiny), **loading)
    model.compile(ctx_len=96, prefill_seq_len=16, precision="fp32")
    return model


@pytest.fixture
def model(tiny, cache):
    model = compiled(tiny)
    yield model
    model.close()


def text_of(model, **options) -> str:
    info = model.generate(prompts=[PROMPT], stream=False, **LENGTH, **options)
    return info.generated_texts[0]


@pytest.mark.parametrize("sampling", [{}, SAMPLED])
def test_every_kind_of_speculation_gives_the_same_text(tiny, model, sampling) -> None:
    plain = text_of(model, **sampling)
    draft = compiled(tiny)
    always = qeff.SpeculationConfig(kind="lookahead", is_adaptive=False)
    for speculation in ("prompt_lookup", "prompt-lookup", "lookahead", always):
        assert text_of(model, speculation=speculation, **sampling) == plain
    assert model.results[0].num_drafted > 0
    for draft_model in (draft, draft.qpc_path, str(draft.qpc_path)):
        assert text_of(model, draft_model=draft_model, **sampling) == plain
    config = qeff.SpeculationConfig(kind="draft", is_adaptive=False)
    assert text_of(model, draft_model=draft, speculation=config, **sampling) == plain
    assert model.results[0].num_accepted > 0


@pytest.mark.parametrize("target", ["cpu", "ort", "reference"])
@pytest.mark.parametrize(("asked", "most"), [(3, 3), ([2, 4, 1], 4)])
def test_a_target_model_keeps_its_number_of_tokens(tiny, cache, target, asked, most) -> None:
    config = {"speculative_model_type": "target"}
    model = qeff.QEFFAutoModelForCausalLM.from_pretrained(str(tiny), qaic_config=config)
    options = {"target": target, "ctx_len": 96, "prefill_seq_len": 16, "precision": "fp32"}
    path = model.compile(num_speculative_tokens=asked, **options)
    assert path == model.compile(num_speculative_tokens=2, **options)  # the container has any
    model.compile(num_speculative_tokens=asked, **options)
    assert model.num_speculative_tokens == most
    opening = model._opening(None, "prompt_lookup", None)
    assert opening.setup.speculation.max_tokens == most
    assert model._opening(None, None, path).setup.speculation.max_tokens == most
    assert text_of(model, draft_model=path) == text_of(model)
    model.close()


def test_speculation_that_makes_no_sense(tiny, model) -> None:
    with pytest.raises(TypeError, match="needs draft_model"):
        text_of(model, speculation="draft")
    with pytest.raises(ValueError, match="uses no draft_model"):
        text_of(model, speculation="lookahead", draft_model=model)
    with pytest.raises(qeff.QeffError, match="unknown kind of speculation 'lookup'"):
        text_of(model, speculation="lookup")
    with pytest.raises(qeff.QeffError, match="there is no container at nowhere"):
        text_of(model, draft_model="nowhere")
    raw = qeff.QEFFAutoModelForCausalLM.from_pretrained(str(tiny))
    with pytest.raises(TypeError, match="the draft model is not compiled"):
        text_of(model, draft_model=raw)
    with pytest.raises(TypeError, match="must be a compiled model"):
        text_of(model, draft_model=3)


def test_context_lengths_are_not_needed(tiny, cache, caplog) -> None:
    config = {"ccl_enabled": True}
    model = qeff.QEFFAutoModelForCausalLM.from_pretrained(str(tiny), qaic_config=config)
    lengths = {"comp_ctx_lengths_prefill": [32, 64], "comp_ctx_lengths_decode": [64, 96]}
    with caplog.at_level(logging.WARNING, "qeff"):
        with_them = model.compile(ctx_len=96, precision="fp32", **lengths)
    (record,) = caplog.records
    assert "not needed here" in record.message and "ccl_enabled" in record.message
    assert with_them == compiled(tiny).compile(ctx_len=96, precision="fp32")
    with pytest.raises(ValueError, match="must rise"):
        model.compile(ctx_len=96, comp_ctx_lengths_prefill=[64, 64])
    with pytest.raises(ValueError, match="goes up to 128"):
        model.compile(ctx_len=96, comp_ctx_lengths_decode=[64, 128])
    with pytest.raises(TypeError, match="whole numbers"):
        model.compile(ctx_len=96, comp_ctx_lengths_decode=["64"])


def test_successive_calls_share_the_engine_and_its_cache(model) -> None:
    first = text_of(model)
    assert model.results[0].num_cached_tokens == 0
    engine = model._kept().answerer(model._opening(None, None, None)).engine
    assert text_of(model) == first
    assert model.results[0].num_cached_tokens > 5
    list(model.stream(PROMPT, **LENGTH))
    assert model._kept().answerer(model._opening(None, None, None)).engine is engine
    assert engine.stats.num_reused_tokens > 10
    text_of(model, speculation="lookahead")
    assert model._kept().answerer(model._opening(None, "lookahead", None)).engine is not engine


def test_several_outputs_come_one_for_each_prompt(model, capsys) -> None:
    prompts = [PROMPT, "the sun"]
    info = model.generate(prompts=prompts, stream=False, n=3, **LENGTH, **SAMPLED)
    assert len(info.generated_texts) == 2 and info.generated_ids.shape == (2, 96)
    for text, result in zip(info.generated_texts, model.results, strict=True):
        assert result.text == text and len(result.alternatives) == 2
    alone = [text_of(model, **{**SAMPLED, "n": 1})]
    assert alone == info.generated_texts[:1]  # the first of n is the text of n = 1
    model.generate(prompts=[PROMPT], n=2, **LENGTH, **SAMPLED)
    assert capsys.readouterr().out.startswith(f"(1) {alone[0]}\n\n(2) ")


def test_constraints_and_logprobs(model) -> None:
    constraint = qeff.Constraint.choice(["yes", "no"])
    assert text_of(model, constraint=constraint, logprobs=1) in ("yes", "no")
    (result,) = model.results
    assert len(result.logprobs) == len(result.token_ids)


def test_stream_gives_the_text_in_pieces(model) -> None:
    whole = text_of(model)
    pieces = list(model.stream(PROMPT, **LENGTH))
    assert len(pieces) > 3 and "".join(piece.text for piece in pieces) == whole
    assert pieces[-1].result is not None and pieces[-1].result.text == whole
    assert all(piece.result is None for piece in pieces[:-1])
    chosen = list(model.stream(PROMPT, constraint=qeff.Constraint.choice(["yes"])))
    assert "".join(piece.text for piece in chosen) == "yes"


def test_streams_side_by_side_and_one_given_up(model) -> None:
    whole = text_of(model)
    first, second = model.stream(PROMPT, **LENGTH), model.stream(PROMPT, **LENGTH, **SAMPLED)
    texts = ["", ""]
    for _ in range(3):
        texts[0] += next(first).text
        texts[1] += next(second).text
    second.close()
    assert text_of(model) == whole  # beside the first, which is still open
    texts[0] += "".join(piece.text for piece in first)
    assert texts[0] == whole and whole != texts[1]
    engine = model._kept().answerer(model._opening(None, None, None)).engine
    assert not engine.has_work


def test_a_stream_keeps_its_engine(model) -> None:
    stream = model.stream(PROMPT, **LENGTH)
    next(stream)
    with pytest.raises(qeff.QeffError, match="another answer of this model is under way"):
        text_of(model, speculation="lookahead")
    stream.close()
    text_of(model, speculation="lookahead")


def test_errors_come_before_the_first_piece(tiny, cache, model) -> None:
    with pytest.raises(TypeError, match="did you mean 'temperature'"):
        model.stream(PROMPT, temperatur=1)
    with pytest.raises(qeff.QeffError, match="the best of several"):
        model.stream(PROMPT, best_of=2, temperature=1.0)
    raw = qeff.QEFFAutoModelForCausalLM.from_pretrained(str(tiny))
    with pytest.raises(TypeError, match="compile first"):
        raw.stream(PROMPT)


async def read(model, **options) -> list[qeff.generate.Delta]:
    return [piece async for piece in model.astream(PROMPT, **LENGTH, **options)]


def test_astream_gives_the_same_text(model) -> None:
    plain, sampled = text_of(model), text_of(model, **SAMPLED)

    async def body():
        return await asyncio.gather(read(model), read(model, **SAMPLED), read(model))

    texts = ["".join(p.text for p in pieces) for pieces in asyncio.run(body())]
    assert texts == [plain, sampled, plain]
    assert text_of(model) == plain  # and back without a loop


@pytest.mark.parametrize("options", [{**SAMPLED, "n": 2}, {"beam_width": 3, "n": 2}])
def test_astream_ends_with_several_outputs(model, options) -> None:
    model.generate(prompts=[PROMPT], stream=False, **LENGTH, **options)
    (expected,) = model.results
    pieces = asyncio.run(asyncio.wait_for(read(model, **options), 60))
    found = combine([piece.result for piece in pieces if piece.result is not None], 2)
    assert [found.text, found.alternatives[0].text] == [
        expected.text,
        expected.alternatives[0].text,
    ]


def test_astream_given_up_and_closed(model) -> None:
    async def body():
        stream = model.astream(PROMPT, ignore_eos=True)
        async for piece in stream:
            assert piece.token_ids
            break
        with pytest.raises(qeff.QeffError, match="another answer of this model is under way"):
            text_of(model)
        await stream.aclose()
        with pytest.raises(qeff.QeffError, match="prompt has"):
            async for _ in model.astream(PROMPT * 40):
                pass

    asyncio.run(body())
    text_of(model)
    asyncio.run(read(model))
    assert engine_threads()
    model.close()
    assert not engine_threads()


def test_a_forgotten_model_closes_its_engine(tiny, cache) -> None:
    model = compiled(tiny)
    asyncio.run(read(model))
    assert engine_threads()
    del model
    gc.collect()
    assert not engine_threads()


def engine_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "qeff-engine"]
