"""The options of ``qeff serve``: command line, variables, file, defaults, in that order."""

from __future__ import annotations

import tomllib
from dataclasses import fields

import pytest

from qeff.apps.cli.main import main
from qeff.apps.server.config import ServerConfig


@pytest.fixture
def show(capsys, monkeypatch):
    """The options that a command line comes to."""
    for name in ("QEFF_PORT", "QEFF_HOST", "QEFF_CTX_LEN"):
        monkeypatch.delenv(name, raising=False)

    def run(*words: str) -> dict:
        code = main(["serve", "--print-config", *words])
        out, err = capsys.readouterr()
        assert code == 0, err
        return tomllib.loads(out)["serve"]

    return run


@pytest.fixture
def refused(capsys):
    """What is said of a command line that cannot be."""

    def run(*words: str) -> str:
        assert main(["serve", "--print-config", *words]) == 2
        return capsys.readouterr().err

    return run


def test_defaults(show) -> None:
    shown = show()
    assert (shown["host"], shown["port"], shown["max_waiting"]) == ("127.0.0.1", 8000, 256)
    assert "api_key" not in shown


def test_flags_before_variables_before_file(show, monkeypatch, tmp_path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('[serve]\nport = 1\nhost = "::1"\nmax-waiting = 7\nctx_len = 512\n')
    assert show("--config", str(file))["port"] == 1
    monkeypatch.setenv("QEFF_PORT", "2")
    monkeypatch.setenv("QEFF_CTX_LEN", "1024")
    shown = show("--config", str(file), "--ctx_len", "2048")
    assert (shown["port"], shown["host"], shown["max_waiting"]) == (2, "::1", 7)
    assert shown["ctx_len"] == 2048
    assert show("--config", str(file), "--port", "3")["port"] == 3


def test_what_is_printed_can_be_read(show, tmp_path) -> None:
    words = ("--port", "9", "--model", "a=x", "--model", "b=y", "--max-body-bytes", "4M")
    words += ("--request-timeout", "2.5", "--log-prompts", "--speculation", "lookahead")
    words += ("--precision-override", "*.down*=int8", "--memory-limit", "1.5GiB")
    words += ("--served-model-name", '\U0001f600 "é" \\')
    shown = show(*words)
    assert shown["memory_limit"] == 3 * 2**29 and shown["served_model_name"] == words[-1]
    assert shown["max_body_bytes"] == 4_000_000 and shown["model"] == ["a=x", "b=y"]
    file = tmp_path / "again.toml"
    file.write_text("[serve]\n" + "\n".join(f"{k} = {_toml(v)}" for k, v in shown.items()))
    assert show("--config", str(file)) == shown


def _toml(value: object) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)


def test_defaults_are_told(capsys) -> None:
    assert main(["serve", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "0 takes any free one; default: 8000 --" in told
    assert "that a request may take; default: 600 --" in told
    assert "idle ones are closed for others --" in told


def test_keys_are_not_printed(capsys) -> None:
    assert main(["serve", "--print-config", "--api-key", "very-secret-key"]) == 0
    out = capsys.readouterr().out
    assert "very-secret-key" not in out and "# api_key is set" in out


def test_every_option_can_be_a_variable(show, monkeypatch) -> None:
    given = {
        "QEFF_API_KEY_FILE": "keys",
        "QEFF_ALLOW_NO_KEY": "yes",
        "QEFF_MODEL": "a=x, b=y",
        "QEFF_THREADS": "2",
        "QEFF_PRECISION": "int8",
        "QEFF_REQUEST_TIMEOUT": "10",
        "QEFF_MEMORY_LIMIT": "2G",
        "QEFF_FULL_BATCH_SIZE": "4",
    }
    for name, text in given.items():
        monkeypatch.setenv(name, text)
    shown = show()
    assert shown["api_key_file"] == "keys" and shown["allow_no_key"] is True
    assert shown["model"] == ["a=x", "b=y"] and shown["threads"] == 2
    assert shown["precision"] == "int8" and shown["request_timeout"] == 10.0
    assert shown["memory_limit"] == 2 * 10**9 and shown["full_batch_size"] == 4


def test_models_of_a_table(show, tmp_path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('[serve.model]\nsmall = "org/small"\nlarge = "org/large"\n')
    assert show("--config", str(file))["model"] == ["small=org/small", "large=org/large"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[serve]\nprot = 1\n", "did you mean 'port'"),
        ("[server]\nport = 1\n", "did you mean 'serve'"),
        ("port = 1\n", "unknown table"),
        ("[serve]\nport = 'x'\n", "not a port"),
        ("[serve]\nport = 70000\n", "not a port"),
        ("[serve]\nmax_waiting = -1\n", "not at least 0"),
        ("[serve]\nrequest_timeout = 0\n", "above 0"),
        ("[serve]\nmemory_limit = '3X'\n", "not a size"),
        ("[serve]\nallow_no_key = 'perhaps'\n", "neither true nor false"),
        ("[serve]\nprecision = 'int5'\n", "int5"),
        ("[serve]\nport = {a = 1}\n", "no value"),
        ("[serve\n", "no TOML"),
    ],
)
def test_files_that_cannot_be(refused, tmp_path, text, said) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(text)
    assert said in refused("--config", str(file))


def test_a_file_that_is_not_there(refused, tmp_path) -> None:
    assert "cannot be read" in refused("--config", str(tmp_path / "none"))


def test_variables_that_cannot_be(refused, monkeypatch) -> None:
    monkeypatch.setenv("QEFF_PORT", "many")
    assert "QEFF_PORT" in refused()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "-1"], "not a port"),
        (["--port", "65536"], "not a port"),
        (["--replicas", "0"], "not at least 1"),
        (["--prot", "1"], "did you mean --port"),
        (["--max-body-bytes", "lots"], "not a size"),
    ],
)
def test_flags_that_cannot_be(refused, words, said) -> None:
    assert said in refused(*words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host", "0.0.0.0"], "no API key"),
        (["--api-key", "short"], "too short"),
        (["somewhere", "--model-name", "else"], "both name a model"),
        (["--model", "=x"], "not NAME=MODEL"),
        (["--speculation", "draft"], "draft model"),
    ],
)
def test_servers_that_cannot_be(capsys, words, said) -> None:
    assert main(["serve", "--port", "0", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_container_has_its_options(capsys, container) -> None:
    assert main(["serve", str(container), "--port", "0", "--ctx-len", "64"]) == 2
    assert "--ctx-len is decided when a container is compiled" in capsys.readouterr().err


@pytest.mark.parametrize("replicas", ["1", "2"])
def test_a_memory_limit_that_is_too_small(capsys, container, replicas) -> None:
    words = ["--port", "0", "--replicas", replicas, "--memory-limit", "1k"]
    assert main(["serve", str(container), *words]) == 2
    err = capsys.readouterr().err
    assert err.count("bytes of memory") == 1 and "Traceback" not in err


def test_every_field_is_an_option(show) -> None:
    from qeff.apps.cli.serve import add_arguments
    from qeff.apps.terminal.parser import Parser

    parser = Parser("qeff serve", "serve")
    add_arguments(parser)
    known = {action.dest for action in parser._actions}
    assert {one.name for one in fields(ServerConfig)} <= known
