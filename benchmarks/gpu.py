"""One GPU, one call: what its memory can do, what transformers does on it, and what we do.

Models have the shapes of Llama 1B and 8B and random weights, so that nothing is downloaded. Prints
one line for each figure, with its bar and its aim. Each part takes less than two minutes.

    python benchmarks/gpu.py                          everything
    python benchmarks/gpu.py --parts copy decode-1b   some of it
    python benchmarks/gpu.py --list                   the names of the parts
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from safetensors.torch import save_file

from qeff.apps.bench.driver import Driver
from qeff.apps.pipeline import build
from qeff.container import Container
from qeff.core.options import CompileOptions, ExportOptions
from qeff.generate import Engine, SamplingParams
from qeff.runtime import open_session
from qeff.runtime.session import Preparing, Session
from qeff.sources import locate_dummy
from qeff.sources.dummy import parameter_shapes

SHAPES = {
    "1b": {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
        "tie_word_embeddings": True,
    },
    "8b": {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "tie_word_embeddings": False,
    },
}  # fmt: skip
COMMON = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "dtype": "bfloat16",
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}
PROMPT, STEPS, WARM = 32, 128, 8


@dataclass(frozen=True, slots=True)
class Case:
    """One figure of ours."""

    shape: str
    precision: str = "bf16"
    kv: str = "auto"
    overrides: tuple[tuple[str, str], ...] = ()
    batch: int = 1
    prefill: int = 0  # tokens of the prompt that is timed; 0: decoding is
    rounds: int = 3
    bar: float = 0.0
    aim: float = 0.0
    prompt: int = PROMPT
    steps: int = STEPS


CASES = {
    "decode-1b": Case("1b", bar=1150, aim=1450),
    "decode-8b": Case("8b", bar=240, aim=260),
    "mxfp4-8b": Case("8b", "mxfp4", bar=480, aim=700),
    "mxfp4-all-8b": Case("8b", "mxfp4", overrides=(("*v_proj*", "mxfp4"),), bar=480, aim=700),
    "int4-8b": Case("8b", "int4", bar=480, aim=700),
    "mxfp6-8b": Case("8b", "mxfp6", bar=360, aim=520),
    "int8-8b": Case("8b", "int8"),
    "fp8-8b": Case("8b", "fp8"),
    "batch32-8b": Case("8b", batch=32, bar=5000, aim=6500),
    "prefill-1b": Case("1b", prefill=4096, bar=200_000, aim=300_000),
    "prefill-8b": Case("8b", prefill=4096, bar=38_000, aim=48_000),
}
# Requests that all come at once, through the engine: new tokens a second until the last is done.
SERVING = Case("8b", "fp8", "fp8", batch=512, bar=9000, aim=17744, prompt=1000, steps=1000)
LOADING = Case("8b", bar=15, aim=5)


def config_folder(root: Path, shape: str) -> Path:
    """A folder with the config of a shape."""
    folder = root / f"llama-{shape}"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(COMMON | SHAPES[shape], indent=1))
    return folder


def copy_rate() -> float:
    """Bytes a second read and written by a copy within the GPU's memory."""
    from qeff.backends.cuda.session.memory import Memory

    return Memory(torch.device("cuda"), None).copy_rate()


def open_case(root: Path, case: Case) -> Session:
    """A session over random weights."""
    ctx_len = -(-max(case.prefill, case.prompt + case.steps + WARM) // 64) * 64
    options = CompileOptions(
        target="cuda",
        precision=case.precision,
        kv_precision=case.kv,
        precision_overrides=case.overrides,
        ctx_len=ctx_len,
        full_batch_size=case.batch,
    )
    began = time.perf_counter()
    location = locate_dummy(config_folder(root, case.shape))
    path = build(location, ExportOptions(continuous_batching=True), options)
    made = time.perf_counter()
    session = open_session(Container.open(path))
    torch.cuda.synchronize()
    ready = time.perf_counter()
    print(f"    compiled in {made - began:.1f} s, opened in {ready - made:.1f} s", flush=True)
    return session


def ours(root: Path, case: Case, is_profiled: bool = False) -> float:
    """Tokens a second of one case, the median of its rounds."""
    session = open_case(root, case)
    try:
        driver = Driver(session, case.batch)
        draws = np.random.default_rng(0)
        length = case.prefill or case.prompt
        prompts = draws.integers(0, session.caps.vocab_size, (case.batch, length), np.int64)
        rates = []
        tokens = np.zeros(case.batch, np.int64)
        prepare(session)
        for _ in range(2):  # a large step is captured when it comes again
            driver.prefill(prompts)
        for _ in range(case.rounds):
            torch.cuda.synchronize()
            began = time.perf_counter()
            if case.prefill:
                driver.prefill(prompts)
                rates.append(prompts.size / (time.perf_counter() - began))
            else:
                driver.decode(tokens, length, case.steps)
                rates.append(case.batch * case.steps / (time.perf_counter() - began))
        if is_profiled:
            profile(lambda: _once(driver, prompts, case))
        used = torch.cuda.max_memory_allocated() / (1 << 30)
        print(
            f"    {', '.join(f'{rate:,.0f}' for rate in rates)} tok/s, {used:.1f} GiB", flush=True
        )
        return float(np.median(rates))
    finally:
        session.close()
        gc.collect()
        torch.cuda.empty_cache()


def prepare(session: Session) -> None:
    """Compile kernels and capture steps, as a server does before it is ready."""
    began = time.perf_counter()
    cast(Preparing, session).prepare()
    print(f"    prepared in {time.perf_counter() - began:.1f} s", flush=True)


def _once(driver: Driver, prompts: np.ndarray, case: Case) -> None:
    if case.prefill:
        driver.prefill(prompts)
    else:
        driver.decode(np.zeros(case.batch, np.int64), prompts.shape[1], WARM)


def serving(root: Path, case: Case) -> float:
    """New tokens a second of many requests at once."""
    session = open_case(root, case)
    with Engine(session, eos_ids=()) as engine:
        draws = np.random.default_rng(0)
        prompts = draws.integers(0, session.caps.vocab_size, (case.batch, case.prompt)).tolist()
        prepare(session)
        before, began = engine.stats, time.perf_counter()
        results = engine.generate(prompts, SamplingParams(max_tokens=case.steps))
        seconds = time.perf_counter() - began
        assert sum(len(one.token_ids) for one in results) == case.batch * case.steps
        after = engine.stats
        print(
            f"    {after.num_steps - before.num_steps} steps in {seconds:.1f} s, "
            f"{after.session_s - before.session_s:.1f} s of them waiting for the device, "
            f"{after.num_preemptions} preemptions",
            flush=True,
        )
    gc.collect()
    torch.cuda.empty_cache()
    return case.batch * case.steps / seconds


def loading(root: Path, case: Case) -> float:
    """Seconds from a container on disk to a first token, in a process of its own."""
    folder = config_folder(root, case.shape)
    shapes = parameter_shapes(json.loads((folder / "config.json").read_text()), str(folder))
    draw = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    tensors = {name: (draw(shape) * 0.02).cpu() for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    del tensors
    options = CompileOptions(target="cuda", ctx_len=256, full_batch_size=1)
    began = time.perf_counter()
    out = root / "container"
    build(folder, ExportOptions(continuous_batching=True), options, out=out)
    print(f"    compiled in {time.perf_counter() - began:.1f} s", flush=True)
    (folder / "model.safetensors").unlink()
    job = {"what": "load", "container": str(out), "short_len": PROMPT, "threads": None}
    seconds = []
    for _ in range(2):  # the first may compile kernels
        done = subprocess.run(
            [sys.executable, "-m", "qeff.apps.bench.worker"],
            input=json.dumps(job),
            capture_output=True,
            text=True,
            check=True,
        )
        found = json.loads(done.stdout.splitlines()[-1])
        print(f"    {found}", flush=True)
        seconds.append(float(found["first_token_s"]))
    return seconds[-1]


def profile(call: Callable[[], None]) -> None:
    """Print where the GPU's time goes."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    with record(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        call()
        torch.cuda.synchronize()
    rows = [row for row in found.key_averages() if row.self_device_time_total > 0]
    rows.sort(key=lambda row: -row.self_device_time_total)
    for row in rows[:16]:
        total, count = row.self_device_time_total, row.count
        print(f"    {total:10.0f} us {count:6d} x {total / count:8.1f} us  {row.key[:70]}")


def transformers_rate(shape: str, is_compiled: bool, batch: int = 1) -> float:
    """Tokens a second of transformers' own decoding with a static cache."""
    from transformers import AutoModelForCausalLM, LlamaConfig, StaticCache

    config = LlamaConfig(**{k: v for k, v in (COMMON | SHAPES[shape]).items() if k != "dtype"})
    with torch.device("cuda"), torch.inference_mode():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
        cache = StaticCache(config=config, max_cache_len=PROMPT + STEPS)
        forward = model.forward
        ids = torch.randint(0, config.vocab_size, (batch, PROMPT))
        place = torch.arange(PROMPT)
        forward(ids, past_key_values=cache, cache_position=place, use_cache=True)
        if is_compiled:
            forward = torch.compile(forward, mode="reduce-overhead", fullgraph=True)
        token = ids[:, :1].clone()

        def decode(count: int) -> None:
            nonlocal token
            for at in range(count):
                where = torch.tensor([PROMPT + at])
                out = forward(token, past_key_values=cache, cache_position=where, use_cache=True)
                token = out.logits[:, -1:].argmax(-1).clone()
            torch.cuda.synchronize()

        decode(WARM)
        began = time.perf_counter()
        decode(STEPS // 2)
        rate = batch * (STEPS // 2) / (time.perf_counter() - began)
    return rate


PEERS: dict[str, Callable[[], float]] = {
    "hf-eager-1b": lambda: transformers_rate("1b", False),
    "hf-compiled-1b": lambda: transformers_rate("1b", True),
    "hf-eager-8b": lambda: transformers_rate("8b", False),
    "hf-compiled-8b": lambda: transformers_rate("8b", True),
    "hf-compiled-batch32-8b": lambda: transformers_rate("8b", True, 32),
}


def main() -> int:
    """Measure the parts asked for, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    names = ["copy", *PEERS, *CASES, "serve-8b", "load-8b"]
    parser.add_argument("--parts", nargs="+", choices=names, default=names, metavar="PART")
    parser.add_argument("--list", action="store_true", help="print the names of the parts")
    parser.add_argument("--profile", action="store_true", help="print the GPU's time by kernel")
    args = parser.parse_args()
    if args.list:
        print("\n".join(names))
        return 0
    found: dict[str, float | str] = {}
    with tempfile.TemporaryDirectory(prefix="qeff-gpu-") as folder:
        for name in args.parts:
            print(f"{name} ...", flush=True)
            began = time.perf_counter()
            try:
                if name == "copy":
                    found[name] = copy_rate()
                elif name in PEERS:
                    found[name] = PEERS[name]()
                elif name == "serve-8b":
                    found[name] = serving(Path(folder), SERVING)
                elif name == "load-8b":
                    found[name] = loading(Path(folder), LOADING)
                else:
                    found[name] = ours(Path(folder), CASES[name], args.profile)
            except Exception as error:  # the other figures still count
                traceback.print_exc()
                found[name] = f"failed: {type(error).__name__}"
            gc.collect()
            torch.cuda.empty_cache()
            print(f"    {found[name]}, {time.perf_counter() - began:.0f} s", flush=True)
    print_table(found)
    return int(any(isinstance(value, str) for value in found.values()))


def print_table(found: dict[str, float | str]) -> None:
    """One line a figure."""
    print(f"\n{'figure':<26}{'measured':>14}{'bar':>10}{'aim':>10}")
    for name, value in found.items():
        case = (CASES | {"serve-8b": SERVING, "load-8b": LOADING}).get(name)
        bar, aim = (f"{case.bar:,.0f}", f"{case.aim:,.0f}") if case and case.bar else ("", "")
        if isinstance(value, str):
            text = value
        elif name == "copy":
            text = f"{value / 1e12:.2f} TB/s"
        elif name == "load-8b":
            text = f"{value:.1f} s"
        else:
            text = f"{value:,.0f} tok/s"
        print(f"{name:<26}{text:>14}{bar:>10}{aim:>10}")


if __name__ == "__main__":
    raise SystemExit(main())
