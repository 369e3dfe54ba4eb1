"""``python -m QEfficient.cloud.export``: ``qeff export``."""

from __future__ import annotations

from collections.abc import Sequence

from QEfficient.cloud import run


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return run("export", argv)


if __name__ == "__main__":
    raise SystemExit(main())
