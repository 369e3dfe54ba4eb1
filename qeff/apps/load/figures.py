"""From the records of a load to its figures, under vLLM's names.

Times are in milliseconds, as vLLM prints them. Requests that failed count in ``failed`` alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qeff.apps.load.record import Record

KINDS = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}
GOALS = ("ttft", "tpot", "itl", "e2el")
ALIASES = {"e2e": "e2el"}


def figures(
    records: Sequence[Record],
    duration_s: float,
    *,
    percentiles: Sequence[float] = (50, 90, 95, 99),
    goals_s: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """All figures of a load as one JSON object."""
    whole = [record for record in records if record.is_whole]
    num_output = sum(record.num_output for record in whole)
    counted = [record.num_prompt for record in whole if record.num_prompt is not None]
    num_input = sum(counted) if len(counted) == len(whole) else None
    found: dict[str, Any] = {
        "duration": duration_s,
        "completed": len(whole),
        "failed": len(records) - len(whole),
        "failures": dict(Counter(r.error or "no end" for r in records if not r.is_whole)),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": len(whole) / duration_s,
        "request_goodput": None,
        "output_throughput": num_output / duration_s,
        "total_token_throughput": None,
        "max_concurrent_requests": most_at_once(records),
    }
    if num_input is not None:
        found["total_token_throughput"] = (num_input + num_output) / duration_s
    if goals_s:
        num_good = sum(is_good(record, goals_s) for record in whole)
        found["request_goodput"] = num_good / duration_s
    for kind in KINDS:
        found |= summary(kind, values(kind, whole), percentiles)
    return found


def values(kind: str, records: Sequence[Record]) -> list[float]:
    """Seconds: one of each request, or all gaps of all requests for ``itl``."""
    if kind == "itl":
        return [gap for record in records for gap in record.gaps]
    return [value for record in records if (value := getattr(record, kind)) is not None]


def summary(kind: str, seconds: Sequence[float], percentiles: Sequence[float]) -> dict[str, Any]:
    """Mean, median, deviation and percentiles in milliseconds; None of nothing."""
    some = np.asarray(seconds, np.float64) * 1e3
    names = [f"mean_{kind}_ms", f"median_{kind}_ms", f"std_{kind}_ms"]
    names += [f"p{p:g}_{kind}_ms" for p in percentiles]
    if not some.size:
        return dict.fromkeys(names)
    numbers = [some.mean(), np.median(some), some.std(), *np.percentile(some, list(percentiles))]
    return {name: float(number) for name, number in zip(names, numbers, strict=True)}


def is_good(record: Record, goals_s: Mapping[str, float]) -> bool:
    """Whether a request met every goal; for ``itl`` its mean gap counts."""
    for kind, most in goals_s.items():
        if kind == "itl":
            value = sum(record.gaps) / len(record.gaps) if record.gaps else None
        else:
            value = getattr(record, kind)
        if value is not None and value > most:
            return False
    return True


def most_at_once(records: Sequence[Record]) -> int:
    """The most requests that ran at the same time."""
    edges = [(record.started, 1) for record in records]
    edges += [(record.ended, -1) for record in records if record.ended is not None]
    running = most = 0
    for _, change in sorted(edges):
        running += change
        most = max(most, running)
    return most


def lines(found: Mapping[str, Any], percentiles: Sequence[float]) -> list[str]:
    """The figures for reading."""
    heads = (
        ("Successful requests", "completed", "d"),
        ("Failed requests", "failed", "d"),
        ("Benchmark duration (s)", "duration", ".2f"),
        ("Total input tokens", "total_input_tokens", "d"),
        ("Total generated tokens", "total_output_tokens", "d"),
        ("Request throughput (req/s)", "request_throughput", ".2f"),
        ("Request goodput (req/s)", "request_goodput", ".2f"),
        ("Output token throughput (tok/s)", "output_throughput", ".2f"),
        ("Total token throughput (tok/s)", "total_token_throughput", ".2f"),
        ("Peak concurrent requests", "max_concurrent_requests", "d"),
    )
    out = [_line(name, found[key], form) for name, key, form in heads if found[key] is not None]
    for kind, title in KINDS.items():
        out.append(f"{f' {title} ':-^54}")
        short = kind.upper()
        out.append(_line(f"Mean {short} (ms)", found[f"mean_{kind}_ms"], ".2f"))
        out.append(_line(f"Median {short} (ms)", found[f"median_{kind}_ms"], ".2f"))
        out += [
            _line(f"P{p:g} {short} (ms)", found[f"p{p:g}_{kind}_ms"], ".2f") for p in percentiles
        ]
    return out + [f"failed {n} times: {reason}" for reason, n in found["failures"].items()]


def _line(name: str, value: Any, form: str) -> str:
    return f"{name + ':':<40}{'-' if value is None else format(value, form):>14}"
