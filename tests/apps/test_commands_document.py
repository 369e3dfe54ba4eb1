"""docs/commands.md: its lines run, every option has its place in some document, exit codes hold."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from pathlib import Path

from qeff.apps.cli.main import commands, load, main
from qeff.apps.terminal import border
from qeff.apps.terminal.parser import Parser, dashed
from qeff.core.env import VARIABLES

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "commands.md").read_text()
LINES = re.findall(r"^\$ (.*)$", TEXT, re.MULTILINE)
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
SPELLINGS = {"--max-concurrency", "--metric-percentiles", "--out"}  # second names, as others have


def options_of(command: str) -> set[str]:
    parser = Parser(prog=command, description="x")
    name = "qeff.apps.load.command" if command == "bench serve" else f"qeff.apps.cli.{command}"
    importlib.import_module(name).add_arguments(parser)
    actions = parser._option_string_actions.items()
    return {name for name, action in actions if action.help != argparse.SUPPRESS}


def test_lines_run_one_after_the_other(tiny, cache, tmp_path, monkeypatch, capsys) -> None:
    """The built-in model is here a tiny one, with a context that it has."""
    monkeypatch.chdir(tmp_path)
    assert len(LINES) > 3
    for line in LINES:
        words = shlex.split(line.replace("512", "64"))[1:]
        model = ["--model-name", str(tiny)] if words[0] == "export" else []
        assert main([*words, *model]) == 0, line
        assert capsys.readouterr().out


def test_every_option_is_told_somewhere() -> None:
    pages = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
    text = "\n".join(page.read_text() for page in pages if page.name != "tree.md")
    named = set(OPTION.findall(text))
    for command in (*commands(), "bench serve"):
        known = {name for name in options_of(command) if name.startswith("--")}
        assert known - named - SPELLINGS - {"--help"} == set(), command


def test_every_named_option_exists() -> None:
    known = {name for command in commands() for name in options_of(command)}
    hidden = Parser(prog="compile", description="x")
    load("compile").add_arguments(hidden)
    known |= set(hidden._option_string_actions)
    named = {dashed(name) for name in OPTION.findall(TEXT)}
    assert named - known - {"--max-new-tokens"} == set()


def test_codes_and_variables_are_those_of_the_code() -> None:
    codes = (0, border.USER, border.USAGE, border.OURS, border.INTERRUPTED, border.PIPE)
    told = re.findall(r"^\| ([\d, ]+) \|", TEXT, re.MULTILINE)
    assert [int(code) for row in told for code in row.split(",")] == list(codes)
    for name in VARIABLES:
        assert f"`{name}`" in TEXT, name
