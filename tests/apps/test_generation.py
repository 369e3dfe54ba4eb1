"""Generation from the command line on a tiny model: whatever happens around, the same tokens."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from qeff.apps import answers
from qeff.apps.cli.main import main

PROMPT = "my name is my name is my name is my name is"
SMALL = ("--ctx-len", "96", "--prompt-len", "16", "--generation-len", "12", "--ignore-eos")


def words_for(tiny: Path, *words: str) -> list[str]:
    return ["infer", "--model-name", str(tiny), "--precision", "fp32", *SMALL, *words]


def infer(tiny: Path, capsys, *words: str) -> dict:
    """The report of a command line."""
    assert main([*words_for(tiny, "--json", *words)]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def tokens(report: dict) -> list[list[int]]:
    return [result["token_ids"] for result in report["results"]]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """How many tokens each sequence has in each step that runs."""
    seen: list[list[int]] = []
    opened = answers.open_engine

    def open_engine(container, text, setup):
        engine = opened(container, text, setup)
        run = engine.session.step

        def step(batch):
            seen.append([span.stop - span.start for span in batch.spans])
            return run(batch)

        monkeypatch.setattr(engine.session, "step", step)
        return engine

    monkeypatch.setattr(answers, "open_engine", open_engine)
    return seen


WAYS = {
    "lookup": "--speculation prompt-lookup --no-adaptive",
    "lookahead": "--model-mode lookahead --ngram 3 --window 2 --gcap 2 --no-adaptive",
    "kv": "--model-mode kv",
    "hybrid": "--model-mode hybrid --prefill-ar-len 5",
    "step tokens": "--step-tokens 7",
    "no reuse": "--no-prefix-reuse",
    "batch": "--full-batch-size 3",
}


@pytest.mark.parametrize("sampling", ["", "--temperature 1.5 --seed 3"])
def test_every_way_gives_the_same_tokens(tiny, cache, capsys, sampling: str) -> None:
    prompts = ["--prompt", f"{PROMPT}|{PROMPT} once|the sun"]
    plain = infer(tiny, capsys, *prompts, *sampling.split())
    for way in WAYS.values():
        assert tokens(infer(tiny, capsys, *prompts, *sampling.split(), *way.split())) == tokens(
            plain
        ), way
    draft = infer(tiny, capsys, *prompts, *sampling.split(), "--draft-model", str(tiny))
    assert tokens(draft) == tokens(plain)


def test_the_shape_of_steps(tiny, cache, capsys, steps) -> None:
    length = infer(tiny, capsys, "--prompt", PROMPT)["results"][0]["num_prompt_tokens"]
    assert length > 6 and steps[0] == [length]
    for words, largest in (
        ("--model-mode kv", 1),
        ("--model-mode hybrid --prefill-ar-len 5", 5),
        ("--prefill-ar-len 4", 4),
        ("--step-tokens 6", 6),
    ):
        steps.clear()
        infer(tiny, capsys, "--prompt", PROMPT, *words.split())
        assert max(count for step in steps for count in step) == largest, words
        assert steps[0] == [largest]


def test_blocks_larger_than_the_container_takes(tiny, cache, capsys) -> None:
    assert main(words_for(tiny, "--prompt", "x", "--prefill-ar-len", "97")) == 2
    err = capsys.readouterr().err
    assert "blocks of 97 tokens are larger than the 96" in err and "give at most 96" in err


def test_equal_beginnings_are_computed_once(tiny, cache, capsys) -> None:
    twice = f"{PROMPT}|{PROMPT}"
    report = infer(tiny, capsys, "--prompt", twice)
    first, second = report["results"]
    assert first["num_reused_tokens"] == 0
    assert second["num_reused_tokens"] == report["totals"]["num_reused_tokens"] > 10
    report = infer(tiny, capsys, "--prompt", twice, "--no-prefix-reuse")
    assert report["totals"]["num_reused_tokens"] == 0
    assert main(words_for(tiny, "--prompt", twice)) == 0
    assert f"{second['num_reused_tokens']} prompt tokens reused" in capsys.readouterr().err


def test_speculation_reports_what_it_did(tiny, cache, capsys) -> None:
    assert infer(tiny, capsys, "--prompt", PROMPT)["totals"]["speculation"] is None
    words = ["--prompt", PROMPT, "--draft-model", str(tiny), "--num-speculative-tokens", "3"]
    report = infer(tiny, capsys, *words, "--no-adaptive")
    stats = report["totals"]["speculation"]
    assert stats["num_drafted"] == stats["num_accepted"] > 0  # the draft is the model itself
    assert stats["acceptance_rate"] == 1.0
    assert report["results"][0]["num_accepted"] == stats["num_accepted"]
    assert main(words_for(tiny, *words, "--no-adaptive")) == 0
    err = capsys.readouterr().err
    assert f"100% of {stats['num_drafted']} guessed tokens right" in err
    assert "running on cpu" not in err  # the number asks for no card


def test_several_texts_are_numbered(tiny, cache, capsys) -> None:
    words = ["--prompt", "my name|the sun", "--temperature", "1", "--seed", "5", "--n", "2"]
    report = infer(tiny, capsys, *words)
    texts = []
    for result in report["results"]:
        (other,) = result["alternatives"]
        assert other["token_ids"] != result["token_ids"] and len(other["token_ids"]) == 12
        texts.append([result["text"], other["text"]])
    assert report["totals"]["num_tokens"] == 4 * 12
    assert main(words_for(tiny, *words)) == 0
    out = capsys.readouterr().out
    (a, b), (c, d) = texts
    assert out == f"> my name\n(1) {a}\n\n(2) {b}\n\n> the sun\n(1) {c}\n\n(2) {d}\n\n"


def test_best_of_and_beams(tiny, cache, capsys) -> None:
    words = ["--prompt", PROMPT, "--temperature", "1", "--seed", "1"]
    one = infer(tiny, capsys, *words, "--n", "1", "--best-of", "4")["results"][0]
    all_of_them = infer(tiny, capsys, *words, "--n", "4", "--logprobs", "0")["results"][0]
    outputs = [all_of_them, *all_of_them["alternatives"]]
    best = max(outputs, key=lambda output: output["cumulative_logprob"])
    assert one["token_ids"] == best["token_ids"] and "alternatives" not in one
    beams = infer(tiny, capsys, "--prompt", PROMPT, "--beam-width", "3", "--n", "2")["results"][0]
    greedy = infer(tiny, capsys, "--prompt", PROMPT, "--logprobs", "0")["results"][0]
    assert beams["cumulative_logprob"] >= greedy["cumulative_logprob"]
    assert len(beams["alternatives"]) == 1


def test_logprobs(tiny, cache, capsys) -> None:
    report = infer(tiny, capsys, "--prompt", PROMPT, "--logprobs", "2", "--prompt-logprobs", "1")
    (result,) = report["results"]
    assert len(result["logprobs"]) == 12
    for token, place in zip(result["token_ids"], result["logprobs"], strict=True):
        assert place["token_id"] == token == place["top"][0]["token_id"]  # greedy: the likeliest
        assert place["logprob"] == place["top"][0]["logprob"] > place["top"][1]["logprob"]
    first, *others = result["prompt_logprobs"]
    assert first["logprob"] is None and all(place["logprob"] < 0 for place in others)
    assert [place["token_id"] for place in (first, *others)] == result["prompt_token_ids"]


@pytest.mark.parametrize(
    ("words", "fits"),
    [
        (["--choice", "yes", "--choice", "no"], lambda text: text in ("yes", "no")),
        (["--regex", "[0-9]{3}"], lambda text: len(text) == 3 and text.isdigit()),
        (["--grammar", 'start: "a" "b"~3'], lambda text: text == "abbb"),
        (
            ["--json-schema", '{"type": "object", "properties": {"a": {"type": "boolean"}},'
             ' "required": ["a"], "additionalProperties": false}'],
            lambda text: isinstance(json.loads(text)["a"], bool),
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("way", ["", "--speculation prompt-lookup --no-adaptive"])
def test_constraints_hold(tiny, cache, capsys, words, fits, way: str) -> None:
    report = infer(tiny, capsys, "--prompt", PROMPT, *words, *way.split(), "--max-tokens", "40")
    (result,) = report["results"]
    assert fits(result["text"]), result["text"]


def test_a_constraint_that_cannot_be_read(tiny, cache, capsys) -> None:
    assert main(words_for(tiny, "--prompt", "x", "--regex", "(")) == 1
    err = capsys.readouterr().err
    assert "the regex cannot be used" in err and "hint: " in err


def test_bad_words_and_biases_are_followed(tiny, cache, capsys) -> None:
    plain = tokens(infer(tiny, capsys, "--prompt", PROMPT))[0]
    first = plain[0]
    for words in (["--logit-bias", f"{first}=-100"], ["--bad-token-ids", str(first)]):
        assert first not in tokens(infer(tiny, capsys, "--prompt", PROMPT, *words))[0]
    text = infer(tiny, capsys, "--prompt", PROMPT)["results"][0]["text"]
    word = max(text.split("\ufffd"), key=len)
    without = infer(tiny, capsys, "--prompt", PROMPT, "--bad-word", word)["results"][0]["text"]
    assert without and word not in without
    stopped = infer(tiny, capsys, "--prompt", PROMPT, "--stop-token-id", str(plain[2]))
    assert tokens(stopped)[0] == plain[: plain.index(plain[2]) + 1]
    assert stopped["results"][0]["finish"] == "stop"


def test_execute_takes_them_too(tiny, cache, capsys, tmp_path) -> None:
    report = infer(tiny, capsys, "--prompt", PROMPT)
    words = ["execute", "--qpc-path", report["container"], "--prompt", PROMPT, "--json"]
    words += ["--max-tokens", "12", "--ignore-eos"]
    for draft in (report["container"], str(tiny)):
        assert main([*words, "--draft-model", draft, "--no-adaptive"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert tokens(found) == tokens(report)
        assert found["totals"]["speculation"]["num_accepted"] > 0
    assert main([*words, "--model-mode", "kv", "--n", "2", "--temperature", "1"]) == 0
    assert len(json.loads(capsys.readouterr().out)["results"][0]["alternatives"]) == 1


def test_a_target_without_trees_says_so(tiny, cache, capsys) -> None:
    words = words_for(tiny, "--prompt", PROMPT, "--target", "ort", "--speculation")
    assert main([*words, "lookahead"]) == 2
    err = capsys.readouterr().err
    assert "this target runs no trees" in err and "hint: use prompt lookup" in err
    assert main([*words, "prompt-lookup", "--no-adaptive"]) == 0


def test_a_draft_of_another_tokenizer(tiny, cache, capsys, tmp_path) -> None:
    from tokenizers import Tokenizer

    other = shutil.copytree(tiny, tmp_path / "other")
    tokenizer = Tokenizer.from_file(str(other / "tokenizer.json"))
    tokenizer.add_tokens(["zebra"])
    tokenizer.save(str(other / "tokenizer.json"))
    assert main(words_for(tiny, "--prompt", "x", "--draft-model", str(other))) == 2
    err = capsys.readouterr().err
    assert "the draft model's tokenizer has" in err and "hint: take a draft model of" in err


def test_compute_context_lengths_are_checked_and_not_needed(tiny, cache, capsys) -> None:
    words = words_for(tiny, "--prompt", "x", "--comp-ctx-lengths-decode")
    assert main([*words, "64,32"]) == 2
    assert "comp_ctx_lengths_decode must rise" in capsys.readouterr().err
    assert main([*words, "64,128"]) == 2
    assert "goes up to 128, but ctx_len is 96" in capsys.readouterr().err
    assert main([*words, "32,96"]) == 0
    err = capsys.readouterr().err
    assert err.count("not needed here") == 1 and "running on cpu" not in err
