"""Findings as a table: one line for each phase, figures under one another.

Takes what a finding says of itself as JSON; knows nothing of how it was found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_HEAD = (
    "phase", "target", "weights", "perplexity", "KL mean", "median", "99 %", "max", "top-1",
    "tokens", "tokens/s",
)  # fmt: skip
_NUM_WORDS = 3  # columns on the left that hold words


def lines(findings: Sequence[Mapping[str, Any]]) -> list[str]:
    """A heading and a line for each phase; KL is in nats, against the phase float."""
    rows = [_HEAD, *(_row(finding) for finding in findings)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    return [_join(row, widths) for row in rows]


def _row(finding: Mapping[str, Any]) -> tuple[str, ...]:
    if finding["same_as"] is not None:
        same = f"as {finding['same_as']}"
        return (finding["phase"], finding["target"], _weights(finding), same, *[""] * 7)
    kl = finding["kl_nats"]
    far: tuple[str, ...] = ("-",) * 5
    if kl is not None and finding["phase"] != "float":
        values = (kl["mean"], kl["median"], kl["p99"], kl["max"])
        far = (*map(_nats, values), f"{finding['top1_agreement']:.2%}")
    return (
        finding["phase"],
        finding["target"],
        _weights(finding),
        f"{finding['perplexity']:.4f} ± {finding['perplexity_error']:.4f}",
        *far,
        f"{finding['tokens_scored']:,}",
        f"{finding['tokens_per_s']:.1f}",
    )


def _nats(value: float) -> str:
    return f"{value:.5f}" if value == 0 or value >= 1e-3 else f"{value:.1e}"


def _weights(finding: Mapping[str, Any]) -> str:
    """The format of most weights, and the arithmetic where that is another."""
    precision = finding["precision"]
    form = precision.get("linear") or precision.get("weights") or precision.get("asked", "")
    return f"{form} in {precision['arithmetic']}" if "arithmetic" in precision else str(form)


def _join(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        text.ljust(width) if i < _NUM_WORDS else text.rjust(width)
        for i, (text, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()
