"""``python -m QEfficient.cloud.<command>``: QEfficient's command lines, run by ``qeff``.

The only difference to ``qeff <command>`` are the documented defaults: 32 tokens in a prefill step,
128 in the cache.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from qeff.apps.cli.main import main as qeff_main

DEFAULTS = ("--prompt-len", "32", "--ctx-len", "128")


def run(command: str, argv: Sequence[str] | None, defaults: Sequence[str] = ()) -> int:
    """Run a command of ``qeff``; options that are given come after the defaults and win."""
    words = sys.argv[1:] if argv is None else argv
    code = qeff_main([command, *defaults, *words])
    if defaults and {"-h", "--help"} & set(words):
        sys.stdout.write(f"\nHere the defaults are QEfficient's: {' '.join(defaults)}.\n")
    return code
