"""The entry point: finds the command by file name, loads that one module and runs it.

Options, errors and exit codes are the terminal's business; what a command does is the command's.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import textwrap
from collections.abc import Sequence
from types import ModuleType

from qeff._version import __version__
from qeff.apps.terminal.border import guarded
from qeff.apps.terminal.parser import Parser
from qeff.apps.terminal.screen import columns
from qeff.core.errors import UsageError, unknown_name

PACKAGE = "qeff.apps.cli"


def commands() -> list[str]:
    """Every command: the modules beside this one."""
    folder = importlib.import_module(PACKAGE).__path__
    return sorted(m.name for m in pkgutil.iter_modules(folder) if m.name != "main")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    return guarded(lambda: dispatch(words), verbose="-v" in words or "--verbose" in words)


def dispatch(words: list[str]) -> int:
    """Answer ``--help`` and ``--version``, or hand over to the command named first."""
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    if not words or words[0] in ("-h", "--help"):
        print(overview())
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        print(f"qeff {__version__}")
        return 0
    name = words[0]
    if name.startswith("-"):
        hint = "options stand after the command, as in qeff infer --help"
        raise UsageError(f"there is no command before {name}", hint)
    if name not in commands():
        raise unknown_name("command", name, commands())
    command, rest = load(name), words[1:]
    second = rest[0] if rest else ""
    if second in getattr(command, "WORDS", {}):  # such as the ``serve`` of ``bench serve``
        name, command, rest = f"{name} {second}", _second(command, second), rest[1:]
    parser = Parser(prog=f"qeff {name}", description=command.HELP)
    command.add_arguments(parser)
    return parser.run(command.run, rest)


def load(name: str) -> ModuleType:
    """The module of one command."""
    return importlib.import_module(f"{PACKAGE}.{name}")


def _second(command: ModuleType, word: str) -> ModuleType:
    """The module of a command of two words."""
    return importlib.import_module(command.WORDS[word])


def overview() -> str:
    """What ``qeff --help`` prints."""
    width, indent = columns(), 12
    lines = [
        textwrap.fill(
            load(name).HELP,
            width,
            initial_indent=f"  {name}".ljust(indent),
            subsequent_indent=" " * indent,
        )
        for name in commands()
    ]
    head = (
        "usage: qeff COMMAND [options]\n\nAny Hugging Face transformer, from checkpoint to text.\n"
    )
    foot = "qeff COMMAND --help lists the options of a command, qeff --version the version."
    return "\n".join([head, *lines, "", textwrap.fill(foot, width)])


if __name__ == "__main__":
    raise SystemExit(main())
