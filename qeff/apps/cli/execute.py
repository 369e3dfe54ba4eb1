"""``qeff execute``: answer prompts with a container that was compiled before.

Needs neither torch nor the checkpoint: the container brings its own tokenizer.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from qeff.apps import vendor
from qeff.apps.terminal.flags import add_device_flag, add_model_flags, find_model
from qeff.apps.terminal.parser import Parser, positive, required
from qeff.apps.terminal.prompts import add_prompt_flags
from qeff.apps.terminal.running import add_running_flags
from qeff.apps.terminal.sampling import add_constraint_flags, add_sampling_flags

if TYPE_CHECKING:
    from qeff.container import Container

HELP = "answer prompts with a compiled container"


def add_arguments(parser: Parser) -> None:
    """Which container, prompts, sampling and running."""
    parser.add_argument("--qpc-path", metavar="DIR", help="the container (required)")
    add_model_flags(parser)
    add_prompt_flags(parser)
    add_sampling_flags(parser)
    add_constraint_flags(parser)
    add_running_flags(parser)
    add_device_flag(parser)
    parser.add_argument("--full-batch-size", type=positive, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Find the container, then answer."""
    from qeff.apps.terminal.answering import answer, read_asked

    asked = read_asked(args)
    container = open_container(args)
    if args.device_group:
        meant = {"device_group": args.device_group}
        if note := vendor.card_note(None, container.manifest.target, meant):
            args.screen.note(note)
    return answer(args, container, asked)


def open_container(args: argparse.Namespace) -> Container:
    """The container that ``--qpc-path`` means."""
    from qeff.apps.container_path import documented_options, open_cached, resolve
    from qeff.container import Container

    path = required(args, "qpc_path", "DIR")
    folder, options = resolve(path), documented_options(path)
    if folder is None and options is not None and args.model_name is not None:
        with args.screen.progress() as progress:
            return open_cached(path, find_model(args, progress), options)
    return Container.open(folder or path)
