"""``qeff infer``: from a checkpoint to text in one command.

Every stage whose result is in the cache is skipped. Text goes to stdout as it is made, timings to
stderr.
"""

from __future__ import annotations

import argparse
import time

from qeff.apps.terminal.flags import (
    add_compile_flags,
    add_model_flags,
    compile_options,
    export_options,
    find_model,
)
from qeff.apps.terminal.parser import Parser
from qeff.apps.terminal.prompts import add_prompt_flags
from qeff.apps.terminal.running import add_running_flags
from qeff.apps.terminal.sampling import add_constraint_flags, add_sampling_flags

HELP = "answer prompts with any model: fetch, export, compile and run in one go"


def add_arguments(parser: Parser) -> None:
    """Model, prompt, sampling, running and compile options."""
    add_model_flags(parser)
    add_prompt_flags(parser)
    add_sampling_flags(parser)
    add_constraint_flags(parser)
    add_running_flags(parser)
    add_compile_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Build what is missing, then answer."""
    from qeff.apps.pipeline import build
    from qeff.apps.terminal.answering import answer, read_asked
    from qeff.container import Container

    asked = read_asked(args)
    options = compile_options(args)
    began = time.perf_counter()
    with args.screen.progress() as progress:
        path = build(find_model(args, progress), export_options(args), options, progress=progress)
    container = Container.open(path)
    return answer(args, container, asked, build_s=time.perf_counter() - began)
