"""Option parsing: argparse with both spellings, whole names only, and errors with a hint.

``--a_b`` is read as ``--a-b`` everywhere. A name that is not known is an error with the nearest
name, never a guess.
"""

from __future__ import annotations

import argparse
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from qeff.apps.terminal.screen import Screen, columns
from qeff.core.env import mute_library_bars
from qeff.core.errors import OptionValueError, UsageError, nearest
from qeff.core.options import PRECISIONS

_LONG = re.compile(r"--[A-Za-z][\w-]*")

# What llama.cpp, vLLM, transformers, ExecuTorch and the Cloud AI recipes call things, and how they
# are asked for here.
ELSEWHERE = {
    "-m": "--model-name",
    "--checkpoint": "--model-name",
    "--decoder-model": "--model-name",
    "-p": "--prompt",
    "-f": "--prompts-txt-file-path",
    "-n": "--generation-len",
    "--n-predict": "--generation-len",
    "--max-new-tokens": "--generation-len",
    "-c": "--ctx-len",
    "--ctx-size": "--ctx-len",
    "--max-seq-len": "--ctx-len",
    "--max-model-len": "--ctx-len",
    "--input-len": "--prompt-len",
    "-t": "--threads",
    "-ngl": "--target cuda",
    "--device-id": "--device-group",
    "--compile-only": "qeff compile",
    "--pre-gen-pte": "qeff execute --qpc-path",
    "--eval-perplexity": "qeff eval perplexity",
}


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError and knows the options common to all commands."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(
            prog=prog,
            usage=f"{prog} [options]",
            description=description[0].upper() + description[1:] + ".",
            allow_abbrev=False,
            formatter_class=_Columns,
        )
        self.add_argument(
            "-v", "--verbose", action="store_true", help="show what is done, step by step"
        )
        self.add_argument("-q", "--quiet", action="store_true", help="no bars, notes or timings")

    def run(self, command: Callable[[argparse.Namespace], int], words: Sequence[str]) -> int:
        """Parse ``words``, then run the command with a screen that fits its flags."""
        args = self.parse(words)
        mute_library_bars()
        args.screen = Screen(is_quiet=args.quiet or getattr(args, "json", False))
        with args.screen.logging(_level(args)):
            return command(args)

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Like ``parse_args``, for both spellings and with the nearest name for a mistyped one."""
        args, rest = self.parse_known_args([dashed(word) for word in words])
        for word in rest:
            if word.startswith("-"):
                raise self._unknown(word.split("=")[0])
        if rest:
            quotes = "a value with spaces stands in quotes"
            takes_model = "--model-name" in self._option_string_actions
            hint = f"a model is named by --model-name, and {quotes}" if takes_model else quotes
            raise UsageError(f"unexpected word {rest[0]!r}", hint)
        return args

    def _unknown(self, option: str) -> UsageError:
        known = [n for n in self._option_string_actions if n.startswith("--")]
        here = ELSEWHERE.get(option, "")
        if here.partition(" ")[0] in ("qeff", *known):
            hint = f"here it is {here}"
        elif _decides_a_container(option):
            hint = "it is an option of qeff compile"
        elif close := nearest(option, known):
            hint = f"did you mean {close}?"
        else:
            hint = f"{self.prog} --help lists the options"
        return UsageError(f"unknown option {option}", hint)

    def error(self, message: str) -> NoReturn:
        """Raise argparse's complaint as ours, without the usage text."""
        raise UsageError(message, f"{self.prog} --help lists the options")


class _Columns(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=columns())


def _decides_a_container(option: str) -> bool:
    from qeff.apps.terminal.flags import add_compile_flags  # which is made with this module

    parser = Parser("qeff compile", "x")
    add_compile_flags(parser)
    return option in parser._option_string_actions


def _level(args: argparse.Namespace) -> int:
    if args.verbose:
        return logging.DEBUG
    return logging.ERROR if args.quiet else logging.WARNING


def dashed(word: str) -> str:
    """An option word with dashes for underscores; any other word as it is."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if _LONG.fullmatch(name) else word


def positive(text: str) -> int:
    """A whole number of at least one."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def device_group(text: str) -> tuple[int, ...]:
    """Device numbers in QEfficient's way of writing: ``[0]``, ``[0,1]``, or ``0,1``."""
    inner = text.strip().removeprefix("[").removesuffix("]")
    try:
        ids = tuple(int(part) for part in inner.split(",") if part.strip())
    except ValueError:
        ids = ()
    if not ids or len(set(ids)) != len(ids) or min(ids) < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of device numbers such as [0,1]")
    return ids


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them, in brackets or without."""
    inner = text.strip().removeprefix("[").removesuffix("]")
    try:
        return tuple(int(part) for part in inner.split(","))
    except ValueError:
        what = f"{text!r} is not a list of whole numbers such as 5,6"
        raise argparse.ArgumentTypeError(what) from None


def override(text: str) -> tuple[str, str]:
    """A pattern of weight names and a precision: ``*.down_proj*=int8``."""
    pattern, equals, precision = text.rpartition("=")
    if not (pattern and equals) or precision not in PRECISIONS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not PATTERN=PRECISION with one of {', '.join(PRECISIONS)}"
        )
    return pattern, precision


def truth(text: str) -> bool:
    """A yes or no that some of QEfficient's flags take as a word."""
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if text.lower() not in words:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return words[text.lower()]


def required(args: argparse.Namespace, name: str, example: str) -> Any:
    """The value of an option that a command cannot do without."""
    value = getattr(args, name)
    if value is None:
        option = "--" + name.replace("_", "-")
        raise OptionValueError(f"{option} is required", f"for example: {option} {example}")
    return value
