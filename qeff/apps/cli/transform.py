"""``qeff transform``: a checkpoint rewritten into another that computes the same.

``replicate-kv-heads`` repeats each head of keys and values, so that there are as many as a device
shares them between. The path of the result goes to stdout.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from qeff.apps.terminal.parser import Parser, positive

HELP = "rewrite a checkpoint: replicate-kv-heads"

_WAYS = ("replicate-kv-heads",)


def add_arguments(parser: Parser) -> None:
    """What to do, to which checkpoint, and where to write the result."""
    parser.usage = f"{parser.prog} WAY MODEL -o DIR [options]"
    parser.add_argument("way", choices=_WAYS, metavar="WAY", help=f"one of: {', '.join(_WAYS)}")
    parser.add_argument("model", metavar="MODEL", help="checkpoint folder or hub id")
    parser.add_argument(
        "--repeat", type=positive, default=2, metavar="N", help="times each head; default 2"
    )
    parser.add_argument("-o", "--out", required=True, metavar="DIR", help="folder to write")
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run the Python code that the checkpoint brings",
    )


def run(args: argparse.Namespace) -> int:
    """Write the checkpoint, once it is known to compute the same."""
    from qeff.apps.kv_heads import replicate_kv_heads
    from qeff.sources import locate

    with args.screen.progress() as progress:
        location = locate(args.model, trust_remote_code=args.trust_remote_code, progress=progress)
        path = replicate_kv_heads(
            location,
            args.repeat,
            Path(args.out),
            trust_remote_code=args.trust_remote_code,
            progress=progress,
        )
    print(path)
    return 0
