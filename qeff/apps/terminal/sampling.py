"""How tokens are chosen and what the output must fit: the options, and the values made of them.

Every setting of ``SamplingParams`` has an option here. A constraint's definition is given as text,
or as the name of a file that holds it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff.apps.terminal.parser import Parser, numbers, positive
from qeff.core.errors import OptionValueError, RequestError

if TYPE_CHECKING:
    from qeff.generate import Constraint, SamplingParams

# Options that are named as their settings; those that were not given keep the settings' defaults.
NUMBERS: dict[str, tuple[Any, str, str]] = {
    "min_tokens": (int, "N", "tokens to generate at least"),
    "temperature": (float, "X", "0 takes the likeliest token"),
    "top_k": (int, "N", "only the N likeliest tokens"),
    "top_p": (float, "X", "only tokens within this probability"),
    "min_p": (float, "X", "only tokens this near the likeliest"),
    "typical_p": (float, "X", "only the least surprising tokens, within this probability"),
    "repetition_penalty": (float, "X", "above 1: repeat less"),
    "presence_penalty": (float, "X", "above 0: repeat less"),
    "frequency_penalty": (float, "X", "the same, by count"),
    "seed": (int, "N", "equal seeds give equal text"),
    "n": (int, "N", "texts to give for each prompt"),
    "best_of": (int, "N", "texts to make for that; the likeliest are given"),
    "beam_width": (int, "N", "beams of a beam search"),
    "length_penalty": (float, "X", "beams are compared by log-probability / length ** X"),
    "logprobs": (int, "N", "with --json: log-probabilities, and the N likeliest of each place"),
    "prompt_logprobs": (int, "N", "the same for the tokens of the prompt"),
}
SWITCHES = {
    "early_stopping": "end a beam search with the first --beam-width finished beams",
    "ignore_eos": "go on when the model is done",
}


def add_sampling_flags(parser: Parser) -> None:
    """How tokens are chosen; without any of these, always the likeliest."""
    group = parser.add_argument_group("sampling")
    group.add_argument(
        "--generation-len",
        "--max-tokens",
        type=positive,
        metavar="N",
        help="tokens to generate at most; default: until --ctx-len is full",
    )
    for name, (kind, metavar, text) in NUMBERS.items():
        group.add_argument(_option(name), type=kind, metavar=metavar, help=text)
    group.add_argument(
        "--logit-bias",
        type=bias,
        action="append",
        metavar="ID=X",
        help="add X to the logit of a token id; this and the next four may be given several times",
    )
    group.add_argument(
        "--bad-word", action="append", metavar="TEXT", help="a text that may not be written"
    )
    group.add_argument(
        "--bad-token-ids",
        type=numbers,
        action="append",
        metavar="ID,ID",
        help="tokens that may not come after one another",
    )
    group.add_argument("--stop", action="append", metavar="TEXT", help="end at this text")
    group.add_argument(
        "--stop-token-id", type=int, action="append", metavar="ID", help="end at this token"
    )
    for name, text in SWITCHES.items():
        group.add_argument(_option(name), action="store_true", help=text)
    group.add_argument(
        "--show-special-tokens", action="store_true", help="leave special tokens in the text"
    )


def add_constraint_flags(parser: Parser) -> None:
    """What the output must fit; one of them at most."""
    group = parser.add_argument_group("constrained output")
    group.add_argument("--json-schema", metavar="FILE|TEXT", help="JSON that fits a schema")
    group.add_argument("--json-object", action="store_true", help="any JSON object")
    group.add_argument("--regex", metavar="TEXT", help="text that matches as a whole")
    group.add_argument(
        "--grammar", metavar="FILE|TEXT", help="text of a grammar, written in Lark or GBNF"
    )
    group.add_argument(
        "--choice", action="append", metavar="TEXT", help="one of these; given for each of them"
    )


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """How tokens are chosen, checked before any work is done."""
    from qeff.generate import SamplingParams

    given = {name: getattr(args, name) for name in NUMBERS if getattr(args, name) is not None}
    return SamplingParams(
        max_tokens=args.generation_len,
        logit_bias=tuple(args.logit_bias or ()),
        bad_words=tuple(args.bad_word or ()),
        bad_token_ids=tuple(args.bad_token_ids or ()),
        stop=tuple(args.stop or ()),
        stop_token_ids=tuple(args.stop_token_id or ()),
        skip_special_tokens=not args.show_special_tokens,
        **{name: getattr(args, name) for name in SWITCHES},
        **given,
    )


def constraint_of(args: argparse.Namespace) -> Constraint | None:
    """What the output must fit; None is anything."""
    from qeff.generate import Constraint

    names = ("json_schema", "json_object", "regex", "grammar", "choice")
    given = [name for name in names if getattr(args, name) not in (None, False)]
    if not given:
        return None
    if len(given) > 1:
        options = " and ".join(_option(name) for name in given[:2])
        raise OptionValueError(f"{options} exclude each other", "an output fits one constraint")
    if args.json_object:
        return Constraint.json_object()
    if args.choice:
        return Constraint.choice(args.choice)
    if args.regex is not None:
        return Constraint.regex(args.regex)
    if args.json_schema is not None:
        is_text = args.json_schema.lstrip()[:1] in ("{", "[") or args.json_schema == "true"
        return Constraint.json_schema(_definition("--json-schema", args.json_schema, is_text))
    is_text = any(sign in args.grammar for sign in (":", "\n", "%"))
    return Constraint.grammar(_definition("--grammar", args.grammar, is_text))


def bias(text: str) -> tuple[int, float]:
    """A token id and what is added to its logit: ``13=-100``."""
    token, equals, value = text.partition("=")
    try:
        pair = int(token), float(value)
    except ValueError:
        equals = ""
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not ID=X, such as 13=-100")
    return pair


def _definition(option: str, given: str, is_text: bool) -> str:
    """A definition that was given as text, or the text of the file that was named."""
    if is_text:
        return given
    try:
        return Path(given).expanduser().read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"{given} is not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise RequestError(
            f"{given} cannot be read: {error.strerror}", f"{option} takes a file or the text itself"
        ) from error


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
