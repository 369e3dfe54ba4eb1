"""What the engine takes for a step besides the session: a session that costs nothing is driven.

Decode steps of many requests at once, nothing guessed; also where that time goes. Choosing the
largest of all logits is work on the model's answer and grows with the vocabulary, so a vocabulary
of 64 shows scheduling alone and the model's own what a user gets. Knows no model.
"""

from __future__ import annotations

import cProfile
import pstats
import time
from dataclasses import dataclass

import numpy as np

from qeff.generate import Engine, Request, SamplingParams, SpeculationConfig
from qeff.generate.drafting import Drafting
from qeff.runtime import Batch, Capabilities, StepOutput

CTX_LEN, BLOCK_LEN = 2048, 32
NUM_PROMPT = 40


@dataclass(frozen=True)
class Overhead:
    """Microseconds of engine time outside the session, for each step."""

    num_requests: int
    vocab_size: int
    speculation: str
    mean_us: float
    median_us: float
    p95_us: float


class FreeSession:
    """Answers at once with logits that were made before, and counts the time it had."""

    def __init__(self, num_requests: int, vocab_size: int) -> None:
        self.caps = Capabilities(
            vocab_size, CTX_LEN, BLOCK_LEN, num_requests, CTX_LEN, supports_trees=True, chooses=True
        )
        draws = np.random.default_rng(0)
        self._logits = draws.standard_normal((16 * num_requests, vocab_size), np.float32)
        self._likeliest = self._logits.argmax(axis=1)
        self.seconds = 0.0

    def reserve(self, num_blocks: int) -> None:
        """There is nothing to reserve."""

    def step(self, batch: Batch) -> StepOutput:
        """The first rows, whatever was asked."""
        started_at = time.perf_counter()
        output = StepOutput(self._logits[:0], self._likeliest[: len(batch.logit_rows)])
        self.seconds += time.perf_counter() - started_at
        return output

    def copy_blocks(self, pairs: object) -> None:
        """There is nothing to copy."""

    def copy_rows(self, pairs: object) -> None:
        """There is nothing to copy."""

    def close(self) -> None:
        """There is nothing to give back."""


def measure(
    num_requests: int, vocab_size: int, num_steps: int, speculation: str = "none"
) -> Overhead:
    """Mean and 95th percentile over decode steps of all requests."""
    engine, session = _start(num_requests, vocab_size, speculation)
    times = []
    for _ in range(num_steps):
        before, started_at = session.seconds, time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - started_at - (session.seconds - before))
    assert engine.stats.num_running == num_requests, "a request ended while it was measured"
    times.sort()
    return Overhead(
        num_requests,
        vocab_size,
        speculation,
        1e6 * sum(times) / len(times),
        1e6 * times[len(times) // 2],
        1e6 * times[int(0.95 * len(times))],
    )


def profile(num_requests: int, vocab_size: int, num_steps: int, most: int = 14) -> str:
    """The functions that most of the time goes to, in microseconds a step, as a table."""
    engine, _ = _start(num_requests, vocab_size, "none")
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(num_steps):
        engine.step()
    profiler.disable()
    rows = []
    for (path, line, name), (_, calls, own, total, _) in pstats.Stats(profiler).stats.items():
        place = path.rpartition("qeff/")[2].rpartition("site-packages/")[2]
        where = name if path == "~" else f"{place}:{line} {name}"
        rows.append((own, total, calls / num_steps, where))
    rows.sort(reverse=True)
    lines = ["| own µs | with callees µs | calls a step | function |", "|---|---|---|---|"]
    for own, total, calls, where in rows[:most]:
        shown = where.replace("|", "\\|").replace("<", "").replace(">", "")
        each = 1e6 / num_steps
        lines.append(f"| {own * each:.1f} | {total * each:.1f} | {calls:.1f} | {shown} |")
    return "\n".join(lines)


def _start(num_requests: int, vocab_size: int, kind: str) -> tuple[Engine, FreeSession]:
    """An engine whose requests have all had their first tokens."""
    session = FreeSession(num_requests, vocab_size)
    drafting = None
    if kind != "none":
        config = SpeculationConfig(kind=kind)  # type: ignore[arg-type]
        drafting = Drafting.start(config, session.caps)
    engine = Engine(session, drafting=drafting)
    draws = np.random.default_rng(1)
    for _ in range(num_requests):
        # Of different lengths, so that some sequence needs a block in almost every step.
        length = NUM_PROMPT + int(draws.integers(BLOCK_LEN))
        prompt = tuple(int(t) for t in draws.integers(0, vocab_size, length))
        engine.add(Request(prompt, SamplingParams(ignore_eos=True)))
    while engine.stats.num_waiting or engine.stats.num_output_tokens < 3 * num_requests:
        engine.step()
    return engine, session
