"""The examples of docs/generate.md run as they are printed, on a tiny model."""

from __future__ import annotations

import io
import re
import shlex
from pathlib import Path

import pytest

from qeff.apps.chat.settings import NAMES
from qeff.apps.cli.main import load, main
from qeff.apps.terminal.parser import Parser

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "generate.md").read_text()
LINES = re.findall(r"^\$ (.*)$", TEXT, re.MULTILINE)
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_there_is_something_to_run() -> None:
    assert len(LINES) > 7 and len(BLOCKS) > 3


@pytest.mark.parametrize("line", LINES)
def test_lines_run(line: str, tiny, cache, monkeypatch, capsys) -> None:
    """The built-in model is here a tiny one, with a context that its prompts fit into."""
    before, _, command = line.rpartition("| qeff ")
    spoken = before.partition("'")[2].rpartition("'")[0].replace("\\n", "\n") or "my name is\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(spoken))
    words = shlex.split(command.removeprefix("qeff "))
    limit = [] if "--generation-len" in words or "--choice" in words else ["--max-tokens", "60"]
    assert main([*words, "--model-name", str(tiny), "--ctx-len", "256", *limit]) == 0
    out, err = capsys.readouterr()
    assert out and "error" not in err


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_programs_run(block: str, tiny, cache, capsys) -> None:
    program = block.replace("from_pretrained(", f"from_pretrained({str(tiny)!r}, ")
    exec(compile(program, "docs/generate.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out or "assert" in block


def test_every_named_option_exists() -> None:
    known = {"--json"}
    for command in ("infer", "chat", "compile"):
        parser = Parser(prog=command, description="x")
        load(command).add_arguments(parser)
        known |= set(parser._option_string_actions)
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", TEXT))
    assert named - known == set()


def test_every_sampling_option_is_named() -> None:
    from qeff.apps.terminal.sampling import NUMBERS, SWITCHES

    for name in (*NUMBERS, *SWITCHES):
        assert "--" + name.replace("_", "-") in TEXT, name
    assert set(NAMES) >= {"temperature", "seed", "stop"}
