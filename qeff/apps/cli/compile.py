"""``qeff compile``: from an ONNX graph or a checkpoint to a container.

The path of the container goes to stdout.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from qeff.apps.terminal.flags import (
    add_compile_flags,
    add_model_flags,
    compile_options,
    export_options,
    find_model,
)
from qeff.apps.terminal.parser import Parser

HELP = "compile a model, or an exported graph, for a target"


def add_arguments(parser: Parser) -> None:
    """Model and compile options, the graph to start from and where to write."""
    add_model_flags(parser)
    add_compile_flags(parser)
    parser.add_argument(
        "--onnx-path", metavar="FILE", help="graph written by qeff export, instead of a model"
    )
    parser.add_argument(
        "--qpc-path", metavar="DIR", help="folder of the container; default: one in the cache"
    )
    # The documents' compile command carries a prompt, which a compilation has no use for.
    parser.add_argument("--prompt", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Compile, or find the container in the cache."""
    from qeff.apps.exported import compile_onnx
    from qeff.apps.pipeline import build

    options = compile_options(args)
    out = Path(args.qpc_path) if args.qpc_path else None
    has_model = args.model_name is not None or args.local_model_dir is not None
    with args.screen.progress() as progress:
        if args.onnx_path:
            graph = Path(args.onnx_path)
            # Beside a graph, a model says where its checkpoint is, should it have been moved.
            model = find_model(args, progress) if has_model else None
            path = compile_onnx(graph, options, location=model, out=out, progress=progress)
        else:
            model = find_model(args, progress)
            path = build(model, export_options(args), options, out=out, progress=progress)
    print(path)
    return 0
