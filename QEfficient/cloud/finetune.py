"""``python -m QEfficient.cloud.finetune``: says that nothing is trained here, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from qeff.apps.terminal.border import USAGE, say


def main(argv: Sequence[str] | None = None) -> int:
    """Refuse in one sentence."""
    say("qeff trains no models", "fine-tune with transformers or peft, then run the merged folder")
    return USAGE


if __name__ == "__main__":
    raise SystemExit(main())
