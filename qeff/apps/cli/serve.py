"""``qeff serve``: models over HTTP, for programs that speak OpenAI's or Anthropic's protocol.

Every option may also be given as a QEFF_<NAME> variable or in a TOML file.
"""

from __future__ import annotations

import argparse
import gc
from dataclasses import MISSING, fields
from importlib.util import find_spec

from qeff.apps.server.config import CTX_LEN, FULL_BATCH_SIZE, ServerConfig
from qeff.apps.terminal.flags import add_compile_flags, add_model_flags
from qeff.apps.terminal.layers import Layers
from qeff.apps.terminal.parser import Parser
from qeff.apps.terminal.running import add_running_flags
from qeff.core.env import prepare_ray
from qeff.core.errors import ResourceError

HELP = "serve models over HTTP: OpenAI's and Anthropic's protocols, and a page to chat"
NEEDED = ("starlette", "pydantic", "uvicorn", "uvloop", "httptools")
NEEDED_BY_RAY = ("ray", "grpc", "aiohttp")  # the last two are there where Ray has its extra


def add_arguments(parser: Parser) -> None:
    """The models, the server, running and compile options."""
    parser.usage = f"{parser.prog} [MODEL] [options]"
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a container, or what --model-name takes; default: the built-in model",
    )
    group = parser.add_argument_group("server")
    group.add_argument(
        "--config", metavar="FILE", help="a TOML file with a table [serve]; options come before it"
    )
    group.add_argument(
        "--print-config", action="store_true", help="print all options as such a file, and end"
    )
    group.add_argument(
        "--model",
        dest="models",
        action="append",
        default=[],
        metavar="NAME=MODEL",
        help="one more model, opened when it is first asked; may be repeated",
    )
    for one in fields(ServerConfig):
        given = dict(one.metadata)
        name = "--" + one.name.removesuffix("_s").replace("_", "-")
        if given.get("action") == "store_true":
            del given["metavar"]
        assert one.default is not MISSING, "every option has a default"
        if one.default not in (None, (), False):
            shown = f"{one.default:g}" if isinstance(one.default, float) else one.default
            given["help"] += f"; default: {shown}"
        group.add_argument(name, dest=one.name, default=one.default, **given)
    add_model_flags(parser)
    add_running_flags(parser)
    add_compile_flags(parser, ctx_len=f"{CTX_LEN}, or the model's", full_batch_size=FULL_BATCH_SIZE)
    parser.set_defaults(layers=Layers(parser))


def run(args: argparse.Namespace) -> int:
    """Find the models, compiling where need be, and serve them."""
    args.layers.fill(args, args.config)
    config = ServerConfig.from_options(vars(args))
    if args.print_config:
        print(args.layers.as_toml(args))
        return 0
    _check_installed(NEEDED, "serve")
    if config.ray:
        _check_installed(NEEDED_BY_RAY, "ray")
    gc.disable()  # there is nothing to be found in what is loaded; the server turns it on again
    from qeff.apps.terminal.served_models import find_entries

    if config.ray:
        prepare_ray()
        from qeff.apps.server.ray_cluster.deploy import run as run_servers
    else:
        from qeff.apps.server.replicas import run as run_servers
    return run_servers(config, lambda: find_entries(args), args.screen.note)


def _check_installed(names: tuple[str, ...], extra: str) -> None:
    """Say which extra is missing, before anything is begun."""
    for name in names:
        if find_spec(name) is None:
            raise ResourceError(
                f"{name} is not installed, and is needed to serve", f"pip install 'qeff[{extra}]'"
            )
