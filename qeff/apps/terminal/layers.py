"""Options from several places: the command line, then QEFF_* variables, then a TOML file.

What none of them names has its default. Works on the options of a parser, so that every option has
all of these places. Knows nothing of what options mean.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qeff.apps.terminal.parser import Parser, truth
from qeff.core.env import option_values
from qeff.core.errors import OptionValueError, QeffError, unknown_name

TABLE = "serve"
# About one run and not about the server, or read before the file can be.
OWN = frozenset({"help", "verbose", "quiet", "config", "print_config"})
SECRET = frozenset({"api_key", "hf_token"})
_SWITCHES = (argparse._StoreTrueAction, argparse._StoreFalseAction)


class Layers:
    """The options of a parser, with their defaults kept aside so that what is given shows."""

    def __init__(self, parser: Parser) -> None:
        self._parser = parser
        self._actions = {
            _name(action): action
            for action in parser._actions
            if action.option_strings and action.dest not in OWN
        }
        self._defaults = {action.dest: action.default for action in self._actions.values()}
        for action in self._actions.values():
            action.default = argparse.SUPPRESS

    def fill(self, args: argparse.Namespace, file: str | None) -> None:
        """Put into ``args`` what the command line left open."""
        named = self._of_file(file) if file is not None else {}
        variables = option_values()
        for name, action in self._actions.items():
            if hasattr(args, action.dest):
                continue
            if name in variables:
                value = self._read(action, variables[name], f"QEFF_{name.upper()}")
            elif name in named:
                value = self._read(action, named[name], f"{name} in {file}")
            else:
                value = self._defaults[action.dest]
            setattr(args, action.dest, value)

    def as_toml(self, args: argparse.Namespace) -> str:
        """The options that are set, as a file that ``--config`` takes; keys are left out."""
        lines = [f"[{TABLE}]"]
        for name, action in sorted(self._actions.items()):
            value = getattr(args, action.dest)
            if name in SECRET and value:
                lines.append(f"# {name} is set, and not shown")
            elif value is None or value == () or value == [] or action.help is argparse.SUPPRESS:
                continue
            else:
                lines.append(f"{name} = {_toml(value)}")
        return "\n".join(lines)

    def _of_file(self, file: str) -> dict[str, Any]:
        import tomllib  # most command lines name no file

        try:
            with Path(file).expanduser().open("rb") as stream:
                whole = tomllib.load(stream)
        except OSError as error:
            raise OptionValueError(f"{file} cannot be read: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise OptionValueError(f"{file} is no TOML: {error}") from error
        for name in whole:
            if name != TABLE:
                raise unknown_name(f"table in {file}:", name, [TABLE])
        table = whole.get(TABLE, {})
        if not isinstance(table, Mapping):
            raise OptionValueError(f"{TABLE} in {file} is no table", f"write [{TABLE}]")
        named = {name.replace("-", "_"): value for name, value in table.items()}
        for name in named:
            if name not in self._actions:
                raise unknown_name(f"option in {file}:", name, self._actions)
        return named

    def _read(self, action: argparse.Action, value: Any, where: str) -> Any:
        """A value as the command line would have read it."""
        try:
            if isinstance(action, _SWITCHES):
                return truth(_text(value))
            if isinstance(action, argparse._AppendAction):
                return [self._one(action, text) for text in _texts(value)]
            if isinstance(value, bool) and action.const is not None:
                return action.const if value else self._defaults[action.dest]
            return self._one(action, _text(value))
        except (argparse.ArgumentError, argparse.ArgumentTypeError) as error:
            message = getattr(error, "message", str(error))
            raise OptionValueError(f"{where}: {message}") from None
        except QeffError as error:
            raise OptionValueError(f"{where}: {error.what}", error.hint) from None

    def _one(self, action: argparse.Action, text: str) -> Any:
        value = self._parser._get_value(action, text)
        self._parser._check_value(action, value)
        return value


def _name(action: argparse.Action) -> str:
    return action.option_strings[0].lstrip("-").replace("-", "_")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, list):
        return ",".join(map(_text, value))
    raise OptionValueError(f"{value!r} is no value of an option")


def _texts(value: Any) -> list[str]:
    """The values of an option that may be repeated."""
    if isinstance(value, Mapping):
        return [f"{name}={_text(one)}" for name, one in value.items()]
    if isinstance(value, list):
        return [_text(one) for one in value]
    return [one.strip() for one in _text(value).split(",") if one.strip()]


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        if value and all(isinstance(one, tuple) for one in value):
            value = ["=".join(map(str, one)) for one in value]
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, int | float):
        return repr(value)
    return json.dumps(str(value), ensure_ascii=False)  # TOML knows no halves of characters
