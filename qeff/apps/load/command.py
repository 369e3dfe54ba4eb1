"""``qeff bench serve``: a load on a running server, and what its clients saw.

The table goes to stdout, one JSON object where ``--json`` says, a picture where ``--plot`` does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff.apps.load.lengths import Lengths
from qeff.apps.terminal.parser import Parser, positive
from qeff.core.errors import OptionValueError, ResourceError, UsageError

if TYPE_CHECKING:
    from qeff.apps.load.prompts import Mixture
    from qeff.apps.load.record import Record
    from qeff.apps.load.sending import Target
    from qeff.core.progress import Progress

HELP = "put a load on a server that speaks OpenAI's protocol, and measure what its clients see"


def add_arguments(parser: Parser) -> None:
    """Whom to ask, what, how often, and where the figures go; names are vLLM's."""
    group = parser.add_argument_group("server")
    group.add_argument(
        "--base-url", default="http://127.0.0.1:8000", metavar="URL", help="http://127.0.0.1:8000"
    )
    group.add_argument("--model", metavar="NAME", help="default: the first that the server names")
    group.add_argument(
        "--endpoint", choices=("chat", "completions"), default="completions", help="completions"
    )
    group.add_argument("--api-key", metavar="KEY", help="sent as a bearer token")
    group.add_argument(
        "--timeout", type=above_zero, default=600.0, metavar="S", help="of one request; 600"
    )
    _add_load_flags(parser)
    group = parser.add_argument_group("figures")
    group.add_argument(
        "--goodput",
        nargs="+",
        type=goal,
        default=[],
        metavar="KIND:S",
        help="count requests that keep within these seconds, such as ttft:0.5 itl:0.05 e2e:10",
    )
    group.add_argument(
        "--percentiles",
        "--metric-percentiles",
        type=percents,
        default=(50.0, 90.0, 95.0, 99.0),
        metavar="P,P",
        help="50,90,95,99",
    )
    group.add_argument(
        "--json", dest="json_to", metavar="FILE", help="write all figures there; - is stdout"
    )
    group.add_argument("--plot", metavar="FILE", help="draw a picture (needs matplotlib)")


def _add_load_flags(parser: Parser) -> None:
    group = parser.add_argument_group("load")
    add = group.add_argument
    add("--num-prompts", type=positive, default=100, metavar="N", help="requests in all; 100")
    add("--request-rate", type=above_zero, metavar="R", help="a second; default: all at once")
    add(
        "--burstiness",
        type=above_zero,
        default=1.0,
        metavar="B",
        help="1 is a Poisson process, less comes in bursts, more is steadier; 1",
    )
    add(
        "--concurrency",
        "--max-concurrency",
        type=positive,
        metavar="C",
        help="most requests that run at a time",
    )
    add("--input-len", type=Lengths.parse, metavar="N", help="prompt tokens, N or MIN:MAX; 128")
    add(
        "--output-len",
        type=Lengths.parse,
        default=Lengths(64, 64),
        metavar="N",
        help="most tokens of an answer, N or MIN:MAX; 64",
    )
    add("--prefix-len", type=positive, metavar="N", help="tokens before, the same in all prompts")
    add(
        "--prompts",
        metavar="FILE",
        help="prompts instead of random words: a line each, or .jsonl with prompt or messages"
        " and perhaps output_tokens",
    )
    add("--seed", type=int, default=0, metavar="N", help="of prompts, lengths and arrivals; 0")
    add("--ignore-eos", action="store_true", help="answers go on to their full length")
    add("--extra-body", type=fields, default={}, metavar="JSON", help="fields for every request")
    add("--no-warm-up", action="store_true", help="no request before the clock starts")


def run(args: argparse.Namespace) -> int:
    """Make the prompts, send them, print the figures; 1 when no request was answered."""
    from qeff.apps.evaluate import plot as matplotlib_there
    from qeff.apps.load.figures import figures, lines

    if args.plot:
        matplotlib_there.check()
    if args.prompts and (args.input_len or args.prefix_len):
        raise OptionValueError(
            "--input-len and --prefix-len are for random prompts", "leave them out beside --prompts"
        )
    with args.screen.progress() as progress:
        records, duration_s, target = asyncio.run(load(args, progress))
    found = figures(records, duration_s, percentiles=args.percentiles, goals_s=dict(args.goodput))
    if args.json_to != "-":
        print("\n".join(lines(found, args.percentiles)))
    if args.json_to:
        write(args.json_to, report(args, target, found, records))
    if args.plot:
        from qeff.apps.load.plot import draw

        draw(records, Path(args.plot), title=f"{target.model} at {target.address}")
        args.screen.note(f"picture: {args.plot}")
    return 0 if found["completed"] else 1


async def load(args: argparse.Namespace, progress: Progress) -> tuple[list[Record], float, Target]:
    """The records of the whole load, its seconds, and whom it went to."""
    from dataclasses import replace

    from qeff.apps.load import drive, prompts
    from qeff.apps.load.client import Address, bearer
    from qeff.apps.load.sending import Target

    extra = {"ignore_eos": True} if args.ignore_eos else {}
    target = Target(
        address=Address.parse(args.base_url),
        model=args.model or "",
        endpoint=args.endpoint,
        headers=bearer(args.api_key),
        extra={**extra, **args.extra_body},
        timeout_s=args.timeout,
    )
    if args.model is None:
        target = replace(target, model=await drive.first_model(target))
    mixture = _mixture(args)
    if args.prompts:
        asks = prompts.read(Path(args.prompts), mixture)
    else:
        counter = prompts.Counter(target.address, target.model, target.headers)
        asks = await prompts.draw(mixture, counter)
        if asks[0].num_tokens is None:
            args.screen.note("the server has no /tokenize: a word of a prompt counts as a token")
    if not args.no_warm_up:
        await drive.warm_up(target, asks[0])
    pace = drive.Pace(
        rate=args.request_rate,
        burstiness=args.burstiness,
        concurrency=args.concurrency,
        seed=args.seed,
    )
    records, duration_s = await drive.drive(target, asks, pace, progress=progress)
    return records, duration_s, target


def _mixture(args: argparse.Namespace) -> Mixture:
    from qeff.apps.load.prompts import Mixture

    return Mixture(
        num_prompts=args.num_prompts,
        input_len=args.input_len or Lengths(128, 128),
        output_len=args.output_len,
        prefix_len=args.prefix_len or 0,
        seed=args.seed,
    )


def report(
    args: argparse.Namespace, target: Target, found: dict[str, Any], records: list[Record]
) -> dict[str, Any]:
    """What ``--json`` writes: the settings, the figures and every request."""
    return {
        "base_url": str(target.address),
        "endpoint": target.endpoint,
        "model": target.model,
        "num_prompts": args.num_prompts,
        "request_rate": args.request_rate,
        "burstiness": args.burstiness,
        "max_concurrency": args.concurrency,
        "input_len": str(args.input_len or 128) if not args.prompts else None,
        "output_len": str(args.output_len),
        "prefix_len": args.prefix_len or 0,
        "prompts": args.prompts,
        "seed": args.seed,
        "goodput": dict(args.goodput),
        **found,
        "requests": [record.to_json() for record in records],
    }


def write(where: str, found: dict[str, Any]) -> None:
    """One JSON object to a file, or to stdout for ``-``."""
    if where == "-":
        print(json.dumps(found))
        return
    try:
        Path(where).write_text(json.dumps(found) + "\n", encoding="utf-8")
    except OSError as error:
        raise ResourceError(f"{where} cannot be written: {error.strerror}") from error


def above_zero(text: str) -> float:
    """A number greater than zero; ``inf`` is none here."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value


def goal(text: str) -> tuple[str, float]:
    """A kind of latency and its most seconds: ``ttft:0.5``."""
    from qeff.apps.load.figures import ALIASES, GOALS

    name, colon, seconds = text.partition(":")
    kind = ALIASES.get(name, name)
    if not colon or kind not in GOALS:
        what = f"{text!r} is not a goal such as ttft:0.5; kinds are {', '.join(GOALS)}"
        raise argparse.ArgumentTypeError(what)
    return kind, above_zero(seconds)


def percents(text: str) -> tuple[float, ...]:
    """Percentiles with commas between them."""
    try:
        found = tuple(sorted({float(part) for part in text.split(",")}))
    except ValueError:
        found = (-1.0,)
    if not all(0 <= value <= 100 for value in found):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of percentiles such as 50,99")
    return found


def fields(text: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--extra-body is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise UsageError("--extra-body is no JSON object", "for example: '{\"top_k\": 1}'")
    return found
