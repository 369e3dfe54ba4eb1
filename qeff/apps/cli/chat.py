"""``qeff chat``: talk with a model in the terminal.

Takes lines from a person or from a pipe. Answers go to stdout as they are made, everything else to
stderr.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from qeff.apps.terminal.containers import find_container
from qeff.apps.terminal.flags import add_compile_flags, add_model_flags
from qeff.apps.terminal.parser import Parser
from qeff.apps.terminal.running import add_running_flags, setup_of, with_draft
from qeff.apps.terminal.sampling import (
    add_constraint_flags,
    add_sampling_flags,
    constraint_of,
    sampling_params,
)
from qeff.core.errors import RequestError

HELP = "talk with a model: any checkpoint, or a compiled container"


def add_arguments(parser: Parser) -> None:
    """The model, the conversation, sampling, running and compile options."""
    parser.usage = f"{parser.prog} [MODEL] [options]"
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a container, or what --model-name takes; default: the built-in model",
    )
    group = parser.add_argument_group("conversation")
    group.add_argument("--system", metavar="TEXT", help="system message")
    group.add_argument(
        "--tools", metavar="FILE", help="a JSON list of functions that the model may call"
    )
    add_model_flags(parser)
    add_sampling_flags(parser)
    add_constraint_flags(parser)
    add_running_flags(parser)
    add_compile_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Open the model and talk until the lines end."""
    from qeff.apps.answers import Answerer
    from qeff.apps.chat.conversation import Conversation
    from qeff.apps.chat.partner import Partner
    from qeff.apps.chat.settings import check_single
    from qeff.apps.terminal.chatting import Chat

    params, constraint = check_single(sampling_params(args)), constraint_of(args)
    setup, tools = setup_of(args), read_tools(args.tools)
    container = find_container(args)
    manifest = container.manifest
    with Answerer(container, setup=with_draft(args, setup, manifest.options)) as answerer:
        partner = Partner(answerer, tools)
        args.screen.note(
            f"{manifest.model.name} on {manifest.target}, context {manifest.options.ctx_len}"
            " tokens; /help lists the commands"
        )
        return Chat(args.screen, partner, Conversation(args.system), params, constraint).run()


def read_tools(name: str | None) -> list[dict[str, Any]]:
    """The functions of a file."""
    if name is None:
        return []
    try:
        tools = json.loads(Path(name).expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(f"{name} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise RequestError(f"{name} is no JSON: {error}") from error
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RequestError(f"{name} holds no list of functions")
    return tools
