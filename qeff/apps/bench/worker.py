"""One measurement in a process of its own: a job as JSON on stdin, figures as JSON on stdout.

Imports the run half only, so that memory and load time are those of a program that runs a
container. ``python -m qeff.apps.bench.worker``; started by ``measure.py``.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from qeff.apps.bench.driver import Driver
from qeff.apps.bench.limits import Limits, measure_limits
from qeff.container import Container
from qeff.core.errors import QeffError
from qeff.runtime import Session, open_session
from qeff.runtime.session import Preparing

WARM_STEPS = 4
_STATUS = Path("/proc/self/status")


def main() -> int:
    """Do the job on stdin; an error of the user's is an answer too."""
    job = json.load(sys.stdin)
    try:
        found = JOBS[job["what"]](job)
    except QeffError as error:
        found = {"error": [error.what, error.hint]}
    print(json.dumps(found))
    return 0


def load(job: dict[str, Any]) -> dict[str, Any]:
    """Seconds from a path to a session that is ready, and on to the first token of an answer."""
    began = time.perf_counter()
    container = Container.open(job["container"])
    session = _open(container, job)
    driver = Driver(session, 1)
    ready = time.perf_counter()
    driver.prefill(_prompts(session, 1, job["short_len"]))
    done = time.perf_counter()
    return {"load_s": ready - began, "first_token_s": done - began}


def single(job: dict[str, Any]) -> dict[str, Any]:
    """Prefill and decode of one sequence, the memory that took, and the machine's limits."""
    session = _open(Container.open(job["container"]), job)
    driver = _prepared(session, 1)
    long, short = (_prompts(session, 1, job[name]) for name in ("prompt_len", "short_len"))
    for prompts in (long, short) * 2:  # a device captures large steps that come again
        tokens = driver.prefill(prompts)
    driver.decode(tokens, short.shape[1], min(WARM_STEPS, job["generation_len"]))
    found: dict[str, Any] = {"prefill_tok_s": [], "ttft_s": [], "decode_tok_s": []}
    for _ in range(job["rounds"]):
        seconds, _ = _timed(lambda: driver.prefill(long))
        found["prefill_tok_s"].append(long.size / seconds)
        seconds, tokens = _timed(lambda: driver.prefill(short))
        found["ttft_s"].append(seconds)
        seconds, _ = _timed(partial(driver.decode, tokens, short.shape[1], job["generation_len"]))
        found["decode_tok_s"].append(job["generation_len"] / seconds)
    found["peak_rss_bytes"] = peak_rss_bytes()
    rate = getattr(session, "memory_rate", None)  # of a device with memory of its own
    limits = None if rate is None else Limits(rate(), None, 0, "copy on the device")
    session.close()
    found["limits"] = (limits or measure_limits(job["threads"])).to_json()
    return found


def batch(job: dict[str, Any]) -> dict[str, Any]:
    """Decode of several sequences together; all their tokens count."""
    session = _open(Container.open(job["container"]), job)
    size, count = job["batch_size"], job["generation_len"]
    driver = _prepared(session, size)
    prompts = _prompts(session, size, job["short_len"])
    tokens = driver.prefill(prompts)
    driver.decode(tokens, prompts.shape[1], min(WARM_STEPS, count))
    rates = []
    for _ in range(job["rounds"]):
        seconds, _ = _timed(lambda: driver.decode(tokens, prompts.shape[1], count))
        rates.append(size * count / seconds)
    return {"batch_decode_tok_s": rates, "peak_rss_bytes": peak_rss_bytes()}


JOBS = {"load": load, "single": single, "batch": batch}


def peak_rss_bytes() -> int:
    """The most memory that this process has had at once."""
    if _STATUS.exists():
        # getrusage would also count the process that started this one.
        line = next(x for x in _STATUS.read_text().splitlines() if x.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _open(container: Container, job: dict[str, Any]) -> Session:
    return open_session(
        container,
        threads=job["threads"],
        vram_budget=job.get("vram_budget"),
        deterministic=job.get("deterministic", False),
    )


def _prepared(session: Session, num_sequences: int) -> Driver:
    """A session with its cache, of which no step compiles anything."""
    driver = Driver(session, num_sequences)
    if session.caps.prepares:
        cast(Preparing, session).prepare()
    return driver


def _prompts(session: Session, count: int, length: int) -> np.ndarray:
    """Token ids without meaning, the same in every run."""
    draws = np.random.default_rng(0)
    return draws.integers(0, session.caps.vocab_size, (count, length), np.int64)


def _timed(call: Callable[[], np.ndarray]) -> tuple[float, np.ndarray]:
    began = time.perf_counter()
    made = call()
    return time.perf_counter() - began, made


if __name__ == "__main__":
    raise SystemExit(main())
