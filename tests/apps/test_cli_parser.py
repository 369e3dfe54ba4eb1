"""Option parsing: both spellings, whole names only, and the nearest name for a mistyped one."""

from __future__ import annotations

import argparse

import pytest

from qeff.apps.cli.main import commands, load, main
from qeff.apps.terminal.flags import compile_options
from qeff.apps.terminal.parser import (
    ELSEWHERE,
    Parser,
    dashed,
    device_group,
    override,
    positive,
    truth,
)
from qeff.apps.terminal.sampling import bias
from qeff.core.errors import UsageError


def parser_of(command: str) -> Parser:
    parser = Parser(prog=f"qeff {command}", description=load(command).HELP)
    load(command).add_arguments(parser)
    return parser


@pytest.mark.parametrize(
    ("word", "read"),
    [
        ("--model_name", "--model-name"),
        ("--model_name=a_b", "--model-name=a_b"),
        ("--prompt=--a_b", "--prompt=--a_b"),
        ("a_b", "a_b"),
        ("--a_b is a value", "--a_b is a value"),
        ("-v", "-v"),
        ("--", "--"),
        ("[0,1]", "[0,1]"),
    ],
)
def test_underscores_become_dashes_in_option_names_only(word: str, read: str) -> None:
    assert dashed(word) == read


@pytest.mark.parametrize("command", ["infer", "export", "compile", "execute", "bench", "chat"])
def test_every_option_has_both_spellings(command: str) -> None:
    parser = parser_of(command)
    for action in parser._actions:
        for name in action.option_strings:
            if not name.startswith("--") or name == "--help":
                continue
            value = [] if action.nargs in (0, "?") else [sample(action)]
            a = parser.parse([name, *value])
            b = parser.parse(["--" + name[2:].replace("-", "_"), *value])
            assert vars(a) == vars(b), name


def sample(action) -> str:  # type: ignore[no-untyped-def]
    if action.choices:
        return next(iter(action.choices))
    return {device_group: "[0]", override: "*=int8", bias: "5=1"}.get(action.type, "1")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["infer", "--promt", "x"], "--prompt"),
        (["infer", "--mxfp_6"], "--mxfp6"),
        (["infer", "--ctx_length", "8"], "--ctx-len"),
        (["execute", "--qpc-pth=x"], "--qpc-path"),
        (["inspect", "--jsn"], "--json"),
    ],
)
def test_a_mistyped_option_names_the_nearest(words: list[str], meant: str, capsys) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "unknown option" in err and f"hint: did you mean {meant}?" in err


def test_an_abbreviation_is_not_guessed(capsys) -> None:
    assert main(["infer", "--prom", "x"]) == 2
    assert "unknown option --prom" in capsys.readouterr().err


def test_a_mistyped_command_names_the_nearest(capsys) -> None:
    assert main(["infre"]) == 2
    assert "did you mean 'infer'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["infer", "--ctx-len", "many", "--prompt", "x"],
        ["infer", "--ctx-len", "0", "--prompt", "x"],
        ["infer", "--prompt"],
        ["infer", "stray", "--prompt", "x"],
        ["infer", "--target", "tpu", "--prompt", "x"],
        ["infer", "--device-group", "[0,zero]", "--prompt", "x"],
        ["infer", "--device-group", "[0,0]", "--prompt", "x"],
        ["execute", "--prompt", "x"],
        ["infer"],
        ["infer", "--temperature", "-1", "--prompt", "x"],
        ["infer", "--prompt", "x", "--precision", "int8", "--mxfp6"],
        ["infer", "--prompt", "x", "--batch-size", "2", "--full-batch-size", "4"],
        ["infer", "--prompt", "x", "--prompt-len", "64", "--ctx-len", "32"],
    ],
)
def test_a_wrong_word_is_one_sentence_and_exit_code_2(words: list[str], capsys) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and "Traceback" not in err
    _, _, rest = err.partition("\n")
    assert rest == "" or rest.startswith("\nhint: ")


@pytest.mark.parametrize(("text", "ids"), [("[0]", (0,)), ("[0,1]", (0, 1)), ("2, 3", (2, 3))])
def test_device_groups(text: str, ids: tuple[int, ...]) -> None:
    assert device_group(text) == ids


def test_values() -> None:
    assert positive("3") == 3
    assert truth("True") is True and truth("false") is False


def test_overrides_are_pairs_and_may_be_repeated() -> None:
    assert override("a=b*=int8") == ("a=b*", "int8")
    for text in ("int8", "=int8", "*.x=int9", "*.x="):
        with pytest.raises(argparse.ArgumentTypeError, match="PATTERN=PRECISION"):
            override(text)
    words = ["--precision-override", "*.a=int8", "--precision_override=*.b=fp16"]
    args = parser_of("compile").parse(words)
    assert compile_options(args).precision_overrides == (("*.a", "int8"), ("*.b", "fp16"))


def test_help_of_every_command(capsys) -> None:
    names = (
        "batch", "bench", "chat", "compile", "doctor", "eval", "execute", "export", "infer",
        "inspect", "serve", "transform",
    )  # fmt: skip
    assert set(commands()) == set(names)
    assert main(["--help"]) == 0
    overview = capsys.readouterr().out
    for name in commands():
        assert name in overview
        assert main([name, "--help"]) == 0
        assert f"usage: qeff {name}" in capsys.readouterr().out


@pytest.mark.parametrize("width", [80, 90])
def test_pages_fit_the_terminal(width: int, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for words in (["--help"], ["infer", "--help"], ["serve", "--help"], ["bench", "serve", "-h"]):
        assert main(words) == 0
        assert max(map(len, capsys.readouterr().out.splitlines())) <= width, words


def test_help_is_a_word_too(capsys) -> None:
    for words in (["infer"], ["bench", "serve"]):
        assert main([*words, "--help"]) == 0
        asked = capsys.readouterr().out
        assert main(["help", *words]) == 0
        assert capsys.readouterr().out == asked


@pytest.mark.parametrize(
    ("command", "context", "batch"),
    [
        ("infer", "default 1024", "batching on"),
        ("serve", "default 4096, or the model's", "default 32"),
        ("batch", "default 4096, or the model's", "default 32"),
        ("eval", "default 512, or what the container", "batching on"),
    ],
)
def test_defaults_in_the_help_are_the_commands_own(command: str, context: str, batch: str) -> None:
    options = parser_of(command)._option_string_actions
    assert context in str(options["--ctx-len"].help)
    assert str(options["--full-batch-size"].help).endswith(batch)


def test_usage_names_what_stands_without_an_option() -> None:
    for command in commands():
        parser = parser_of(command)
        for action in parser._get_positional_actions():
            assert str(action.metavar) in parser.format_usage(), command


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["infer", "-m", "x.gguf"], "here it is --model-name"),
        (["infer", "-n", "8"], "here it is --generation-len"),
        (["infer", "-ngl", "12"], "here it is --target cuda"),
        (["infer", "--max_seq_len", "128"], "here it is --ctx-len"),
        (["infer", "--compile_only"], "here it is qeff compile"),
        (["export", "--precision", "int4"], "it is an option of qeff compile"),
        (["execute", "--ctx-len", "8"], "it is an option of qeff compile"),
        (["inspect", "-m", "x"], "qeff inspect --help lists the options"),
        (["infer", "some/model"], "a model is named by --model-name"),
        (["inspect", "one", "two"], "a value with spaces stands in quotes"),
        (["-v", "infer"], "options stand after the command"),
        (["--verson"], "options stand after the command"),
    ],
)
def test_words_of_other_programs_are_answered(words: list[str], hint: str, capsys) -> None:
    assert main(words) == 2
    assert f"hint: {hint}" in capsys.readouterr().err


def test_every_name_from_elsewhere_leads_somewhere() -> None:
    options = {name for command in commands() for name in parser_of(command)._option_string_actions}
    for name, here in ELSEWHERE.items():
        words = here.split()
        assert name not in parser_of("infer")._option_string_actions
        assert words[0] in options or (words[0] == "qeff" and words[1] in commands()), name


def test_version(capsys) -> None:
    import qeff

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"qeff {qeff.__version__}\n"


def test_a_parser_error_is_ours() -> None:
    with pytest.raises(UsageError):
        parser_of("infer").parse(["--batch-size", "x"])
