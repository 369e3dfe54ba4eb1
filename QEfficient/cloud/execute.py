"""``python -m QEfficient.cloud.execute``: ``qeff execute``."""

from __future__ import annotations

from collections.abc import Sequence

from QEfficient.cloud import run


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return run("execute", argv)


if __name__ == "__main__":
    raise SystemExit(main())
