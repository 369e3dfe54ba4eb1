"""Two servers under the same load in turns: total tokens a second and times to the first token.

Every round starts each server afresh, warms it up, and sends the same prompts. Nobody is always the
first. Knows nothing of what the servers are.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contest.quiet import wait_until_quiet

from qeff.apps.load import drive
from qeff.apps.load.figures import figures
from qeff.apps.load.prompts import Ask
from qeff.apps.load.sending import Target
from serving_load.servers import Kind, Server

PERCENTILES = (50.0, 95.0)
SPEED_BAR = 1.5
START_BAR_S = 1.0  # from the start of the process to its first answer


@dataclass(frozen=True)
class Plan:
    """What is asked of every server in every round."""

    asks: Sequence[Ask]
    concurrency: int
    rounds: int
    work: Path
    quiet_share: float = 0.05
    quiet_wait_s: float = 60.0
    num_input: int = 0  # tokens of all prompts


@dataclass
class Measured:
    """The figures of one server, a list of rounds."""

    rounds: list[dict[str, Any]] = field(default_factory=list)

    def median(self, name: str) -> float:
        """Over the rounds."""
        return statistics.median(found[name] for found in self.rounds)

    def least(self, name: str) -> float:
        """Over the rounds; what others on the machine take cannot make it less."""
        return min(float(found[name]) for found in self.rounds)


def measure(plan: Plan, kinds: Sequence[Kind]) -> dict[str, Measured]:
    """All rounds of all servers."""
    found = {kind.name: Measured() for kind in kinds}
    for number in range(plan.rounds):
        turn = number % len(kinds)
        for kind in [*kinds[turn:], *kinds[:turn]]:
            if not wait_until_quiet(plan.quiet_share, plan.quiet_wait_s):
                print("others are at work: measured all the same", file=sys.stderr)
            found[kind.name].rounds.append(_round(plan, kind))
    return found


def _round(plan: Plan, kind: Kind) -> dict[str, Any]:
    log = plan.work / f"{kind.name.replace(' ', '-')}.log"
    with Server(kind, log) as server:
        return asyncio.run(_load(plan, server))


async def _load(plan: Plan, server: Server) -> dict[str, Any]:
    unnamed = Target(address=server.address, model="")
    target = Target(address=server.address, model=await drive.first_model(unnamed))
    await drive.warm_up(target, Ask("Once upon a time", 8))
    pace = drive.Pace(concurrency=plan.concurrency)
    records, seconds = await drive.drive(target, plan.asks, pace)
    found = figures(records, seconds, percentiles=PERCENTILES)
    if found["failed"]:
        raise RuntimeError(f"{server.kind.name}: {found['failures']}")
    # Not every server counts the tokens of prompts, and all get the same.
    found["total_tok_s"] = (plan.num_input + found["total_output_tokens"]) / seconds
    found["start_s"], found["rss_mb"] = server.start_s, server.rss_bytes() / 1e6
    return found


def table(plan: Plan, found: dict[str, Measured]) -> str:
    """All servers side by side, the first against the second."""
    columns = (
        ("output tok/s", "output_throughput", ".1f"),
        ("all tok/s", "total_tok_s", ".1f"),
        ("TTFT p50 ms", "p50_ttft_ms", ".0f"),
        ("TTFT p95 ms", "p95_ttft_ms", ".0f"),
        ("ITL p50 ms", "p50_itl_ms", ".1f"),
        ("ITL p95 ms", "p95_itl_ms", ".1f"),
        ("output tokens", "total_output_tokens", ".0f"),
        ("start s", "start_s", ".2f"),
        ("memory MB", "rss_mb", ".0f"),
    )
    rows = [("server", *(name for name, _, _ in columns))]
    rows += [
        (name, *(format(measured.median(key), form) for _, key, form in columns))
        for name, measured in found.items()
    ]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    head = (
        f"{len(plan.asks)} requests with {plan.num_input} prompt tokens, {plan.concurrency} at a"
        f" time; medians of {plan.rounds} interleaved rounds."
    )
    return "\n".join([head, "", *lines, "", *verdicts(found)])


def verdicts(found: dict[str, Measured]) -> list[str]:
    """The bars: a quick start, so many times the tokens, and a p95 that is not worse."""
    (name, mine), *others = found.items()
    start = mine.least("start_s")
    state = "reached" if start < START_BAR_S else "MISSED"
    lines = [f"{name}: answers {start:.2f} s after its start (bar {START_BAR_S:g} s: {state})."]
    for rival, theirs in others:
        ratio = mine.median("output_throughput") / theirs.median("output_throughput")
        state = "reached" if ratio >= SPEED_BAR else "MISSED"
        first, second = mine.median("p95_ttft_ms"), theirs.median("p95_ttft_ms")
        lines.append(
            f"{name}: {ratio:.2f} × the tokens of {rival} (bar {SPEED_BAR:g} ×: {state}); p95 time"
            f" to first token {first:.0f} ms against {second:.0f} ms:"
            f" {'not worse' if first <= second else 'WORSE'}."
        )
    return lines
