"""The options of generation: every setting has one, and one that makes no sense is one sentence."""

from __future__ import annotations

import argparse
from dataclasses import fields

import pytest

from qeff.apps.cli.main import load, main
from qeff.apps.opening import Setup
from qeff.apps.terminal.parser import Parser
from qeff.apps.terminal.running import setup_of
from qeff.apps.terminal.sampling import constraint_of, sampling_params
from qeff.generate import Constraint, SamplingParams, SpeculationConfig

# setting: (words, value); what else must be given stands beside it
SETTINGS = {
    "max_tokens": ("--max-tokens 9", 9),
    "min_tokens": ("--min-tokens 3", 3),
    "temperature": ("--temperature 0.7", 0.7),
    "top_k": ("--top-k 40", 40),
    "top_p": ("--top-p 0.9", 0.9),
    "min_p": ("--min-p 0.1", 0.1),
    "typical_p": ("--typical-p 0.8", 0.8),
    "repetition_penalty": ("--repetition-penalty 1.2", 1.2),
    "presence_penalty": ("--presence-penalty -0.5", -0.5),
    "frequency_penalty": ("--frequency-penalty 0.5", 0.5),
    "logit_bias": ("--logit-bias 13=-100 --logit-bias 5=2.5", ((5, 2.5), (13, -100.0))),
    "bad_words": ("--bad-word no --bad-word never", ("no", "never")),
    "bad_token_ids": ("--bad-token-ids 5,6 --bad-token-ids 7", ((5, 6), (7,))),
    "seed": ("--seed 4", 4),
    "stop": ("--stop . --stop ;", (".", ";")),
    "stop_token_ids": ("--stop-token-id 8 --stop-token-id 9", (8, 9)),
    "ignore_eos": ("--ignore-eos", True),
    "skip_special_tokens": ("--show-special-tokens", False),
    "n": ("--n 3 --temperature 1", 3),
    "best_of": ("--best-of 4 --temperature 1", 4),
    "logprobs": ("--logprobs 2", 2),
    "prompt_logprobs": ("--prompt-logprobs 0", 0),
    "beam_width": ("--beam-width 4", 4),
    "length_penalty": ("--length-penalty 0.5 --beam-width 2", 0.5),
    "early_stopping": ("--early-stopping --beam-width 2", True),
}


def parse(command: str, words: list[str]) -> argparse.Namespace:
    parser = Parser(prog=command, description="x")
    load(command).add_arguments(parser)
    return parser.parse(words)


def test_every_setting_has_an_option() -> None:
    assert set(SETTINGS) == {field.name for field in fields(SamplingParams)}


@pytest.mark.parametrize("command", ["infer", "execute", "chat"])
@pytest.mark.parametrize("name", SETTINGS)
def test_options_reach_the_settings(command: str, name: str) -> None:
    words, value = SETTINGS[name]
    assert getattr(sampling_params(parse(command, words.split())), name) == value


@pytest.mark.parametrize("command", ["infer", "execute", "chat"])
def test_without_options_everything_is_a_default(command: str) -> None:
    args = parse(command, [])
    assert sampling_params(args) == SamplingParams()
    assert constraint_of(args) is None
    assert setup_of(args) == Setup()


SCHEMA = '{"type": "object", "properties": {"a": {"type": "integer"}}}'


def test_constraints(tmp_path) -> None:
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.lark"
    schema.write_text(SCHEMA)
    grammar.write_text('start: "a"+\n')
    expected = {
        ("--json-schema", SCHEMA): Constraint.json_schema(SCHEMA),
        ("--json-schema", str(schema)): Constraint.json_schema(SCHEMA),
        ("--json-object",): Constraint.json_object(),
        ("--regex", "[0-9]+"): Constraint.regex("[0-9]+"),
        ("--grammar", 'start: "a"'): Constraint.grammar('start: "a"'),
        ("--grammar", str(grammar)): Constraint.grammar('start: "a"+\n'),
        ("--choice", "yes", "--choice", "no"): Constraint.choice(["yes", "no"]),
    }
    for words, constraint in expected.items():
        assert constraint_of(parse("infer", list(words))) == constraint


LOOKAHEAD = SpeculationConfig(kind="lookahead", ngram=3, window=2, gcap=5)


@pytest.mark.parametrize(
    ("words", "setup"),
    [
        ("--threads 2", Setup(threads=2)),
        ("--step-tokens 64", Setup(step_tokens=64)),
        ("--no-prefix-reuse", Setup(reuses_prefixes=False)),
        ("--model-mode kv", Setup(chunk_tokens=1)),
        ("--model-mode hybrid", Setup()),
        ("--model-mode hybrid --prefill-ar-len 16", Setup(chunk_tokens=16)),
        ("--prefill-ar-len 16", Setup(chunk_tokens=16)),
        ("--model-mode lookahead --ngram 3 --window 2 --gcap 5", Setup(speculation=LOOKAHEAD)),
        (
            "--model_mode lookahead --prefill_ar_len 32 --ngram 3 --window 2 --gcap 5",
            Setup(chunk_tokens=32, speculation=LOOKAHEAD),
        ),
        (
            "--model-mode lookahead --speculation lookahead --prefill-ar-len 32",
            Setup(chunk_tokens=32, speculation=SpeculationConfig(kind="lookahead")),
        ),
        (
            "--speculation prompt-lookup --num-speculative-tokens 6 --no-adaptive",
            Setup(
                speculation=SpeculationConfig(kind="prompt_lookup", num_tokens=6, is_adaptive=False)
            ),
        ),
        ("--draft-model small", Setup(speculation=SpeculationConfig(kind="draft"))),
        (
            "--speculation draft --draft-model small --num-speculative-tokens 3",
            Setup(speculation=SpeculationConfig(kind="draft", num_tokens=3)),
        ),
    ],
)
def test_setups(words: str, setup: Setup) -> None:
    for command in ("infer", "execute", "chat"):
        assert setup_of(parse(command, words.split())) == setup


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("--n 2", "n 2 at temperature 0"),
        ("--best-of 2 --n 3 --temperature 1", "best_of 2 is smaller than n 3"),
        ("--beam-width 2 --temperature 1", "beam search does not sample"),
        ("--length-penalty 2", "length_penalty is a setting of beam search"),
        ("--min-tokens 9 --max-tokens 3", "min_tokens 9 is larger"),
        ("--logit-bias 5", "'5' is not ID=X"),
        ("--logit-bias 5=1000", "logit_bias must be from -100 to 100"),
        ("--bad-token-ids a", "'a' is not a list of whole numbers"),
        ("--json-object --regex a", "--json-object and --regex exclude each other"),
        ("--model-mode kv --prefill-ar-len 8", "knows no --prefill-ar-len"),
        ("--model-mode kv --speculation prompt-lookup", "cannot verify guesses"),
        (
            "--model-mode lookahead --speculation prompt-lookup",
            "--speculation prompt-lookup and --model-mode lookahead exclude each other",
        ),
        (
            "--speculation prompt-lookup --draft-model x",
            "--speculation prompt-lookup and --draft-model x exclude each other",
        ),
        ("--speculation draft", "--speculation draft needs the draft model"),
        ("--ngram 3", "--ngram is a setting of lookahead decoding"),
        ("--speculation prompt-lookup --gcap 3", "--gcap is a setting of lookahead decoding"),
        ("--num-speculative-tokens 3", "--num-speculative-tokens is a setting of speculation"),
        ("--no-adaptive", "--no-adaptive is a setting of speculation"),
        ("--speculation lookahead --ngram 2", "ngram must be at least 3"),
        ("--speculation guess", "invalid choice"),
        ("--prefill-ar-len 0", "0 is not at least 1"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(words: str, what: str, capsys) -> None:
    assert main(["infer", "--prompt", "x", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and what in err and "Traceback" not in err
    _, _, rest = err.partition("\n")
    assert rest == "" or rest.startswith("\nhint: ")


@pytest.mark.parametrize("option", ["--json-schema", "--grammar"])
def test_a_definition_that_is_no_file(option: str, capsys) -> None:
    assert main(["infer", "--prompt", "x", option, "nowhere"]) == 1
    err = capsys.readouterr().err
    assert "nowhere cannot be read" in err and f"hint: {option} takes a file or the text" in err
