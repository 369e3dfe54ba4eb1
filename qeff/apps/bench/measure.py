"""A whole benchmark: starts one process after the other, and makes medians of what they found.

Every load is one process; speed at batch size one is another, and each larger batch one more, so
that no figure carries the memory of another.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from qeff.apps.bench.traffic import decode_bytes, weights_bytes
from qeff.container import Container
from qeff.core.errors import OptionValueError, ResourceError
from qeff.core.progress import Event, Progress, silent

MAX_LOADS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure; lengths are in tokens."""

    prompt_len: int = 512
    short_len: int = 32  # the prompt before decoding, and of the time to first token
    generation_len: int = 128
    batch_sizes: tuple[int, ...] = (1, 8)
    rounds: int = 5
    threads: int | None = None
    vram_budget: int | None = None
    deterministic: bool = False

    @property
    def ctx_len(self) -> int:
        """What a container must hold for all of it."""
        return max(self.prompt_len, self.short_len + self.generation_len)


def run(container: Container, plan: Plan, *, progress: Progress = silent) -> dict[str, Any]:
    """Every figure, under the names that ``--json`` prints."""
    options = container.manifest.options
    if plan.ctx_len > options.ctx_len:
        raise OptionValueError(
            f"the container holds {options.ctx_len} tokens, {plan.ctx_len} are wanted",
            "lower --prompt-len and --generation-len, or compile with a larger --ctx-len",
        )
    if max(plan.batch_sizes) > options.max_batch:
        raise OptionValueError(
            f"the container runs a batch of {options.max_batch}, "
            f"{max(plan.batch_sizes)} are wanted",
            "lower --batch-sizes, or compile with a larger --batch-size",
        )
    larger = [size for size in plan.batch_sizes if size > 1]
    num_loads = min(plan.rounds, MAX_LOADS)
    jobs: list[dict[str, Any]] = [{"what": "load"}] * num_loads + [{"what": "single"}]
    jobs += [{"what": "batch", "batch_size": size} for size in larger]
    found = []
    for done, job in enumerate(jobs):
        progress(Event("measure", done, len(jobs), "processes"))
        found.append(_in_process(container, plan, job))
    loads, single = found[:num_loads], found[num_loads]
    batches = dict(zip(map(str, larger), found[num_loads + 1 :], strict=True))
    if 1 in plan.batch_sizes:
        batches = {"1": {"batch_decode_tok_s": single["decode_tok_s"]}, **batches}
    return _report(container, plan, loads, single, batches)


def _report(
    container: Container,
    plan: Plan,
    loads: Sequence[Mapping[str, Any]],
    single: Mapping[str, Any],
    batches: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    series: dict[str, Sequence[float]] = {
        **{name: single[name] for name in ("prefill_tok_s", "decode_tok_s", "ttft_s")},
        **{name: [load[name] for load in loads] for name in ("load_s", "first_token_s")},
    }
    by_batch = {size: found["batch_decode_tok_s"] for size, found in batches.items()}
    read = decode_bytes(container)
    manifest = container.manifest
    bandwidth = single["limits"]["read_bytes_s"]
    return {
        "model": manifest.model.name,
        "num_params": manifest.model.num_params,
        "target": manifest.target,
        "precision": dict(manifest.precision),
        "container": str(container.path),
        "prompt_len": plan.prompt_len,
        "short_len": plan.short_len,
        "generation_len": plan.generation_len,
        "rounds": plan.rounds,
        "threads": plan.threads,
        **{name: median(values) for name, values in series.items()},
        "batch_decode_tok_s": {size: median(values) for size, values in by_batch.items()},
        "peak_rss_bytes": single["peak_rss_bytes"],
        "weights_bytes": weights_bytes(container),
        "decode_bytes": read,
        "decode_bandwidth_share": median(series["decode_tok_s"]) * read / bandwidth,
        "limits": single["limits"],
        "spread": {
            **{name: _spread(values) for name, values in series.items()},
            "batch_decode_tok_s": {size: _spread(values) for size, values in by_batch.items()},
        },
    }


def _spread(values: Sequence[float]) -> list[float]:
    return [min(values), max(values)]


def _in_process(container: Container, plan: Plan, job: Mapping[str, Any]) -> dict[str, Any]:
    full = {name: getattr(plan, name) for name in plan.__slots__ if name != "batch_sizes"}
    done = subprocess.run(
        [sys.executable, "-m", "qeff.apps.bench.worker"],
        input=json.dumps({**full, **job, "container": str(container.path.absolute())}),
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ResourceError(
            f"the process that measures {job['what']} ended early: {why[:200]}",
            "memory may have run out; use a smaller --prompt-len, --batch-sizes or --precision",
        )
    found: dict[str, Any] = json.loads(lines[-1])
    if "error" in found:
        raise ResourceError(*found["error"])
    return found
