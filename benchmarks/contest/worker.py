"""Measures one engine in a fresh process: ``python -m contest.worker JOB``, a JSON file.

The job names the engine, its model and one task; what came of it is written as JSON to the file
that the job calls ``result``. A time counts from before the engine's library is imported. Knows
neither bars nor tables.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from contest.quiet import Disturbance
from contest.serving import timed_serve

Job = dict[str, Any]


def main() -> None:
    """Do the job of the file named on the command line."""
    job = json.loads(Path(sys.argv[1]).read_text())
    result = TASKS[job["task"]](job)
    Path(job["result"]).write_text(json.dumps(result))
    os._exit(0)  # some engines take long, or crash, when they are taken down


def measure_single(job: Job) -> dict[str, Any]:
    """Load to first token, then decode and prefill of one sequence in turns; peak memory."""
    prompt = job["prompts"][0]
    with Disturbance() as others:
        start = time.perf_counter()
        engine = open_engine(job, num_sequences=1)
        loaded = time.perf_counter()
        engine.start([prompt], job["num_new"])
        first = time.perf_counter()
    load = {"load_s": loaded - start, "load_to_first_token_s": first - start}
    runs: list[dict[str, Any]] = [{**load, "others": others.share}]
    engine.start([job["long_prompt"]], 1)  # warms up what only long prompts use
    for _ in range(job["repeats"]):
        runs.append(timed_decode(engine, [prompt], job["num_new"]))
        with Disturbance() as others:
            start = time.perf_counter()
            engine.start([job["long_prompt"]], 1)
            seconds = time.perf_counter() - start
        prefill = {"prefill_tok_s": len(job["long_prompt"]) / seconds, "others": others.share}
        runs.append(prefill)
    return {"runs": runs, "peak_rss_bytes": peak_rss_bytes()}


def measure_batch(job: Job) -> dict[str, Any]:
    """Decode of several sequences together."""
    prompts = job["prompts"]
    engine = open_engine(job, num_sequences=len(prompts))
    timed_decode(engine, prompts, 4)  # warms up
    runs = [timed_decode(engine, prompts, job["num_new"]) for _ in range(job["repeats"])]
    for run in runs:
        run["batch_decode_tok_s"] = run.pop("decode_tok_s")
    return {"runs": runs}


def measure_serving(job: Job) -> dict[str, Any]:
    """Requests of mixed length, all at once."""
    load = [(prompt, num_new) for prompt, num_new in job["load"]]
    engine = open_engine(job, num_sequences=len(load))
    timed_serve(engine, [(prompt, 2) for prompt, _ in load[:4]])  # warms up
    return {"runs": [timed_serve(engine, load) for _ in range(job["repeats"])]}


def timed_decode(engine: Any, prompts: list[list[int]], num_new: int) -> dict[str, Any]:
    """Tokens a second of all sequences together after their first tokens; and the first's time."""
    with Disturbance() as others:
        start = time.perf_counter()
        tokens = engine.start(prompts, num_new)
        first = time.perf_counter()
        for _ in range(num_new - 1):
            tokens = engine.advance(tokens)
        end = time.perf_counter()
    assert len(tokens) == len(prompts), "an engine stopped early"
    return {
        "first_token_s": first - start,
        "decode_tok_s": len(prompts) * (num_new - 1) / (end - first),
        "others": others.share,
    }


def write_reference(job: Job) -> dict[str, Any]:
    """Keep the logits of every window of the text in one file."""
    import numpy as np

    engine = open_engine(job, num_sequences=1)
    rows = np.stack([engine.logits(window) for window in job["windows"]])
    np.save(job["reference"], rows)
    return {"shape": list(rows.shape)}


def measure_divergence(job: Job) -> dict[str, Any]:
    """Compare with the reference: mean KL in nats, and how often the first choice agrees."""
    import numpy as np

    reference = np.load(job["reference"], mmap_mode="r")
    engine = open_engine(job, num_sequences=1)
    divergence, agreed = [], []
    for window, wanted in zip(job["windows"], reference, strict=True):
        found = engine.logits(window)
        assert found.shape == wanted.shape, f"{found.shape} logits, the reference {wanted.shape}"
        for low in range(0, len(window), 64):  # a few rows at a time, in double precision
            p, q = log_softmax(wanted[low : low + 64]), log_softmax(found[low : low + 64])
            divergence.append((np.exp(p) * (p - q)).sum(axis=1))
            agreed.append(p.argmax(axis=1) == q.argmax(axis=1))
    kl = np.concatenate(divergence)
    return {
        "kl": float(kl.mean()),
        "kl_error": float(kl.std() / np.sqrt(len(kl))),
        "top1": float(np.concatenate(agreed).mean()),
        "tokens": len(kl),
    }


def log_softmax(logits: Any) -> Any:
    """Logarithms of the probabilities, float64 [rows, vocabulary]."""
    import numpy as np

    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def tell_versions(job: Job) -> dict[str, Any]:
    """What the engine's library calls itself."""
    return import_module(f"contest.engines.{job['engine']}").versions()


def quantise(job: Job) -> dict[str, Any]:
    """Make a model file with the engine's own quantiser."""
    module = import_module(f"contest.engines.{job['engine']}")
    module.quantise(job["source"], job["out"], job["kind"], job["threads"])
    return {"bytes": Path(job["out"]).stat().st_size}


def compile_model(job: Job) -> dict[str, Any]:
    """Make a container of a checkpoint."""
    import_module(f"contest.engines.{job['engine']}").compile_model(job)
    return {}


def open_engine(job: Job, num_sequences: int) -> Any:
    """Import the engine's library and open its model."""
    module = import_module(f"contest.engines.{job['engine']}")
    return module.Engine(job["model"], job["threads"], job["ctx_len"], num_sequences)


def peak_rss_bytes() -> int:
    """The largest resident size of this program; getrusage would count its parent's too."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x)
    return int(line.split()[1]) * 1024


TASKS = {
    "single": measure_single,
    "batch": measure_batch,
    "serving": measure_serving,
    "reference": write_reference,
    "divergence": measure_divergence,
    "versions": tell_versions,
    "quantise": quantise,
    "compile": compile_model,
}

if __name__ == "__main__":
    main()
