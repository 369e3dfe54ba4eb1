"""Counts the kernels that steps of a session would compile; nothing is launched.

A process of its own: Triton decides when it is imported whether kernels are interpreted. Prints
one line of JSON. ``python cuda_dry.py FOLDER``; started by ``test_cuda_prepare.py``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from cuda_container import VOCAB, Kind, MemoryContainer
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from qeff.backends.cuda.session import linear, open_session
from qeff.backends.cuda.session.compiling import compiling
from qeff.backends.cuda.session.graphs import Graphs, Made
from qeff.backends.cuda.session.kernels import embed
from qeff.runtime.session import CHOICE, GREEDY, Batch, Span

CTX, MAX_BATCH, STEPS = 1152, 12, 80
CHOICES = (GREEDY, (0.5, 1.0, 0.0, 0, (1, 2), 3), (0.5, 0.9, 0.1, 5, (1, 2), 3))
KINDS = {
    "bf16": Kind(form="bf16", compute="bf16", kv="bf16", layers=2),
    "mxfp4": Kind(form="mxfp4", compute="bf16", kv="fp8", layers=2),
    "experts": Kind(form="bf16", compute="bf16", kv="bf16", layers=2, experts=16),
    "packed experts": Kind(form="q4_0", compute="bf16", kv="bf16", layers=2, experts=16),
    "heads that guess": Kind(form="bf16", compute="bf16", kv="bf16", layers=2, guessing=1),
}


class Device:
    """A driver of no device."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


class Kernels:
    """The different kernels that were asked for."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def compile(self, function: JITFunction, key: str, *known: Any) -> Any:
        """Stands for Triton's: a kernel that does nothing."""
        self.names.append(function.__name__)
        nothing = SimpleNamespace(
            run=lambda *_: None,
            launch_metadata=lambda *_: None,
            function=None,
            packed_metadata=None,
        )
        function.device_caches[0][0][key] = nothing
        return nothing


class Nothing:
    """A captured step that is played back."""

    def replay(self) -> None:
        pass


def record(pool: Any, step: Callable[[], Made]) -> tuple[Nothing, Made, int]:
    return Nothing(), step(), 0


def random_step(draws: np.random.Generator, chooses: bool) -> tuple[Batch, bool]:
    """What an engine may ask for, and whether it is small: decodes, prompts, or both."""
    num_prompts = int(draws.integers(0, 4))
    num_decodes = int(draws.integers(0 if num_prompts else 1, MAX_BATCH - num_prompts + 1))
    most = int(draws.choice([4, 20, 60, 300, 1000]))
    lens = [1] * num_decodes + draws.integers(2, most + 2, num_prompts).tolist()
    firsts = [int(draws.integers(0, CTX - size + 1)) for size in lens]
    ends = np.cumsum(lens)
    is_due = [size == 1 or draws.random() < 0.7 for size in lens]
    rows = ends[is_due] - 1
    choice = CHOICES[int(draws.integers(0, len(CHOICES)))]
    batch = Batch(
        tokens=draws.integers(0, VOCAB, ends[-1]),
        positions=np.concatenate([np.arange(a, a + n) for a, n in zip(firsts, lens, strict=True)]),
        spans=tuple(
            Span(int(end - size), int(end), (0,) * (CTX // 64))
            for end, size in zip(ends, lens, strict=True)
        ),
        logit_rows=rows,
        choices=np.array([choice] * len(rows), CHOICE) if chooses else None,
    )
    # Rows that are all asked for, of more than one token each, are those of guesses.
    is_small = ends[-1] <= 64 and len(rows) > 0 and (not num_prompts or len(rows) < ends[-1])
    return batch, bool(is_small)


def count(kind: Kind, folder: Path, kernels: Kernels) -> dict[str, Any]:
    """What preparing compiles and captures, and what steps do after it."""
    container = MemoryContainer(kind, folder, max_batch=MAX_BATCH)
    container.manifest.options = replace(container.manifest.options, ctx_len=CTX)
    session = open_session(container, None, device="cpu")
    session._graphs = Graphs(torch.device("cpu"), 1 << 40, record)
    session.reserve(CTX // 64)
    num_before = len(kernels.names)
    session.prepare()
    num_prepared, num_captured = len(kernels.names), session._graphs.num_captured
    draws, num_more = np.random.default_rng(0), 0
    for _ in range(STEPS):
        batch, is_small = random_step(draws, session.caps.chooses)
        captured = session._graphs.num_captured
        session.begin(batch)
        num_more += is_small and session._graphs.num_captured - captured
    return {
        "prepared": num_prepared - num_before,
        "captured": num_captured,
        "compiled after": kernels.names[num_prepared:],
        "captured after": int(num_more),
    }


def compile_ahead() -> list[int]:
    """Kernels that are there after a launch that is none, and numbers that it wrote."""
    table, index, out = torch.ones((4, 64)), torch.zeros(3, dtype=torch.int64), torch.zeros((3, 64))
    with compiling():
        for _ in range(2):
            embed.embed_rows(table, index, 0, out)
    return [len(embed._rows.device_caches[0][0]), int(out.count_nonzero())]


def main(folder: Path) -> None:
    """Print what every kind of model needs."""
    driver.set_active(Device())
    found: dict[str, Any] = {"compiled ahead": compile_ahead()}
    kernels = Kernels()
    JITFunction._do_compile = lambda self, *known: kernels.compile(self, *known)
    linear._multiply = lambda *operands: None  # cuBLAS's part
    for name, kind in KINDS.items():
        own = folder / name
        own.mkdir()
        found[name] = count(kind, own, kernels)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
