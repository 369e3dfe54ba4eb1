"""``python -m QEfficient.cloud.infer``: ``qeff infer`` with QEfficient's defaults."""

from __future__ import annotations

from collections.abc import Sequence

from QEfficient.cloud import DEFAULTS, run


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return run("infer", argv, DEFAULTS)


if __name__ == "__main__":
    raise SystemExit(main())
