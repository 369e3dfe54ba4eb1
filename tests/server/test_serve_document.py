"""The examples of docs/serve.md run as they are printed, and its options are there."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

import qeff
from qeff.apps.cli.main import load
from qeff.apps.load import command as load_command
from qeff.apps.terminal.parser import Parser

TEXT = (Path(qeff.__file__).parent.parent / "docs" / "serve.md").read_text()
LINES = [line for line in re.findall(r"^\$ (.*)$", TEXT, re.MULTILINE) if line.startswith("qeff")]
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = {"serve": load("serve"), "bench serve": load_command, "batch": load("batch")}


def parser_of(name: str) -> Parser:
    parser = Parser(prog=f"qeff {name}", description=COMMANDS[name].HELP)
    COMMANDS[name].add_arguments(parser)
    return parser


def test_there_is_something_to_run() -> None:
    assert len(LINES) > 8 and len(BLOCKS) > 1


@pytest.mark.parametrize("line", LINES)
def test_lines_are_understood(line: str) -> None:
    words = shlex.split(line.partition("    ")[0])[1:]
    name = " ".join(words[:2]) if words[0] == "bench" else words[0]
    parser_of(name).parse(words[len(name.split()) :])


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_programs_run(block: str, server, capsys) -> None:
    pytest.importorskip("openai")
    pytest.importorskip("anthropic")
    program = block.replace("http://127.0.0.1:8000", server.url)
    exec(compile(program, "docs/serve.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out


def test_every_named_option_exists() -> None:
    known = {"--help"}
    for name in COMMANDS:
        known |= set(parser_of(name)._option_string_actions)
    known |= {"--holds"}  # of the benchmark
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", TEXT))
    assert named - known == set()


def test_every_option_of_the_server_is_named() -> None:
    from dataclasses import fields

    from qeff.apps.server.config import ServerConfig

    for one in fields(ServerConfig):
        assert "--" + one.name.removesuffix("_s").replace("_", "-") in TEXT, one.name


def test_the_file_is_understood(tmp_path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    assert set(tomllib.loads(block)) == {"serve"}
    (tmp_path / "serve.toml").write_text(block)
    args = parser_of("serve").parse([])
    args.layers.fill(args, str(tmp_path / "serve.toml"))
    assert (args.port, args.ctx_len, args.full_batch_size) == (9000, 8192, 64)


def test_every_route_and_number_is_there(server) -> None:
    known = set(server.get("/openapi.json").json()["paths"])
    rows = re.findall(r"^\| `(?:POST|GET) (.*?) \|", TEXT, re.MULTILINE)
    named = {path for row in rows for path in re.findall(r"(/[\w/.]*)", row)}
    assert named - known <= {"/", "/openapi.json"} and len(named) > 12
    metrics = server.get("/metrics").text
    for name in re.findall(r"`((?:vllm|qeff):\w+)`", TEXT):
        assert f"\n{name}" in metrics, name
