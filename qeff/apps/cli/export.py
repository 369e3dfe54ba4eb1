"""``qeff export``: from a checkpoint to an ONNX graph that ONNX Runtime runs as it is.

The path of the graph goes to stdout.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from qeff.apps.terminal.flags import (
    add_batching_flags,
    add_model_flags,
    add_mxint8_flag,
    export_options,
    find_model,
)
from qeff.apps.terminal.parser import Parser

HELP = "write the ONNX graph of a model, checked against the original"


def add_arguments(parser: Parser) -> None:
    """Model options and where to write."""
    add_model_flags(parser)
    add_batching_flags(parser)
    add_mxint8_flag(parser)
    parser.add_argument(
        "--export-dir", metavar="DIR", help="folder to write; default: one in the cache"
    )


def run(args: argparse.Namespace) -> int:
    """Export, or find the export in the cache."""
    from qeff.apps.exported import export_onnx

    if args.mxint8_kv_cache:
        args.screen.note(
            "--mxint8-kv-cache is an option of compile: the graph does not depend on it"
        )
    out = Path(args.export_dir) if args.export_dir else None
    with args.screen.progress() as progress:
        path = export_onnx(
            find_model(args, progress), export_options(args), out=out, progress=progress
        )
    print(path)
    return 0
