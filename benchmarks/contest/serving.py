"""Requests of mixed length on one engine at once: tokens a second, and how evenly they come.

The load is the same for every engine. Knows neither bars nor tables.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence
from typing import Any

from contest.quiet import Disturbance

Load = list[tuple[list[int], int]]  # a prompt and how many tokens are wanted after it


def make_load(tokens: Sequence[int], num_requests: int, prompt: int, new: int) -> Load:
    """Pieces of a text; lengths of up to ``prompt`` and ``new``, at least an eighth of that."""
    draws = random.Random(num_requests)
    load = []
    for _ in range(num_requests):
        length = draws.randint(max(1, prompt // 8), prompt)
        first = draws.randrange(len(tokens) - length)
        load.append((list(tokens[first : first + length]), draws.randint(max(2, new // 8), new)))
    return load


def timed_serve(engine: Any, load: Load) -> dict[str, Any]:
    """Serve the load once."""
    times: list[list[float]] = [[] for _ in load]
    with Disturbance() as others:
        start = time.perf_counter()
        engine.serve(load, lambda index: times[index].append(time.perf_counter()))
        seconds = time.perf_counter() - start
    counts = [len(each) for each in times]
    wanted = [num_new for _, num_new in load]
    assert counts == wanted, f"{counts} tokens were given, {wanted} were wanted"
    gaps = sorted(b - a for each in times for a, b in itertools.pairwise(each))
    firsts = sorted(each[0] - start for each in times)
    return {
        "serve_tok_s": sum(wanted) / seconds,
        "serve_all_tok_s": (sum(wanted) + sum(len(prompt) for prompt, _ in load)) / seconds,
        "gap_p50_s": gaps[len(gaps) // 2],
        "gap_p95_s": gaps[int(0.95 * len(gaps))],
        "ttft_p50_s": firsts[len(firsts) // 2],
        "ttft_p95_s": firsts[int(0.95 * len(firsts))],
        "others": others.share,
    }
