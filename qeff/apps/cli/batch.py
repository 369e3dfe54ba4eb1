"""``qeff batch``: a file of requests in OpenAI's batch format to a file of answers.

The answers go to their file as they are made, in any order; the summary to stdout. The same command
again goes on where the last one ended.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from qeff.apps.server.config import CTX_LEN, FULL_BATCH_SIZE, ServerConfig
from qeff.apps.terminal.flags import add_compile_flags, add_model_flags
from qeff.apps.terminal.parser import Parser, positive
from qeff.apps.terminal.running import add_running_flags
from qeff.core.errors import OptionValueError, ResourceError

if TYPE_CHECKING:
    from qeff.apps.batch.ledger import Ledger
    from qeff.apps.batch.senders import Sender
    from qeff.apps.batch.work import Summary

    # Where requests go, how many at a time, and what ends it.
    Way = tuple[Sender, int, Callable[[], Awaitable[None]]]

HELP = "answer a file of requests in OpenAI's batch format; can be interrupted and gone on with"

SERVING = ("served_model_name", "cache_tokens", "memory_limit")  # options of the server
REMOTE_AT_ONCE = 32
NO_LIMIT_S = 1e8  # a batch has time


def add_arguments(parser: Parser) -> None:
    """The two files, the model or the server, running and compile options."""
    parser.usage = f"{parser.prog} IN OUT [options]"
    parser.add_argument("source", metavar="IN", help="requests, one JSON object on each line")
    parser.add_argument("out", metavar="OUT", help="answers; those that it holds are not asked for")
    group = parser.add_argument_group("batch")
    group.add_argument(
        "--model",
        dest="models",
        action="append",
        default=[],
        metavar="MODEL",
        help="a container, or what --model-name takes; NAME=MODEL where several are asked",
    )
    for one in fields(ServerConfig):
        if one.name in SERVING:
            name = "--" + one.name.replace("_", "-")
            group.add_argument(name, dest=one.name, default=one.default, **one.metadata)
    group.add_argument("--base-url", metavar="URL", help="ask a running server instead")
    group.add_argument("--api-key", metavar="KEY", help="for --base-url")
    group.add_argument(
        "--concurrency",
        type=positive,
        metavar="N",
        help="requests at a time; default: twice what the model runs, or"
        f" {REMOTE_AT_ONCE} for --base-url",
    )
    group.add_argument("--overwrite", action="store_true", help="begin again, whatever OUT holds")
    group.add_argument("--json", action="store_true", help="print the summary as JSON")
    add_model_flags(parser)
    add_running_flags(parser)
    add_compile_flags(parser, ctx_len=f"{CTX_LEN}, or the model's", full_batch_size=FULL_BATCH_SIZE)


def run(args: argparse.Namespace) -> int:
    """Look at both files, open the model if there is anything to ask, and print the summary."""
    from qeff.apps.batch import jobs
    from qeff.apps.batch.ledger import Ledger
    from qeff.apps.batch.work import Summary

    source, out = Path(args.source).expanduser(), Path(args.out).expanduser()
    wanted = jobs.check(source)
    if out.exists() and source.samefile(out):
        raise OptionValueError("IN and OUT are the same file", "give the answers one of their own")
    with Ledger(out, starts_over=args.overwrite) as ledger:
        ledger.check(wanted, source)
        num_before = len(ledger.answered)
        if num_before:
            args.screen.note(f"{num_before} of {len(wanted)} lines were answered before")
        summary = Summary(lines=len(wanted), answered_before=num_before)
        if num_before < len(wanted):
            summary = _answer(args, source, len(wanted), ledger)
    print(json.dumps(summary.to_json()) if args.json else line(summary))
    return 0


def _answer(args: argparse.Namespace, source: Path, num_lines: int, ledger: Ledger) -> Summary:
    """Ask what has no answer yet."""
    from qeff.apps.batch.work import Worker, work

    sender, at_once, close = _remote(args) if args.base_url else _in_process(args)

    async def answer() -> Summary:
        with args.screen.progress() as progress:
            try:
                worker = Worker(sender, ledger)
                return await work(source, num_lines, worker, at_once, progress=progress)
            finally:
                await close()

    return asyncio.run(answer())


def _remote(args: argparse.Namespace) -> Way:
    """A running server."""
    from qeff.apps.batch.senders import Remote
    from qeff.apps.load.client import Address, bearer

    if args.models or args.model_name or args.local_model_dir:
        raise OptionValueError(
            "--base-url and a model exclude each other", "the requests name the server's models"
        )

    async def close() -> None:
        pass

    sender = Remote(Address.parse(args.base_url), bearer(args.api_key))
    return sender, args.concurrency or REMOTE_AT_ONCE, close


def _in_process(args: argparse.Namespace) -> Way:
    """The routes of a server in this process, which nobody else can reach."""
    try:
        from qeff.apps.server.app import create_app
        from qeff.apps.server.run import make_state
    except ImportError as error:
        name = str(error.name).partition(".")[0]
        raise ResourceError(
            f"{name} is not installed, and is needed to answer a batch",
            "pip install 'qeff[serve]'",
        ) from error
    from qeff.apps.batch.senders import InProcess
    from qeff.apps.terminal.served_models import find_entries

    chosen = {name: getattr(args, name) for name in SERVING}
    config = ServerConfig(log_format="none", request_timeout_s=NO_LIMIT_S, **chosen)
    wanted = argparse.Namespace(**{**asdict(config), **vars(args), "model": None})
    entries, num_sequences = find_entries(wanted)
    at_once = args.concurrency or 2 * num_sequences
    # Room for everything that is asked at once, so that nothing is refused.
    config = replace(config, max_waiting=at_once * config.max_outputs)
    state = make_state(config, entries, num_sequences)
    state.models.check()
    return InProcess(create_app(state)), at_once, state.models.close


def line(summary: Summary) -> str:
    """The summary for reading."""
    text = f"{summary.lines} lines: {summary.answered} answered"
    if summary.failed:
        text += f", {summary.failed} of them with an error"
    if summary.answered_before:
        text += f", {summary.answered_before} before"
    num_tokens = summary.prompt_tokens + summary.completion_tokens
    if summary.seconds and num_tokens:
        rate = summary.completion_tokens / summary.seconds
        text += f"; {num_tokens} tokens in {summary.seconds:.1f} s, {rate:.1f} made a second"
    return text
