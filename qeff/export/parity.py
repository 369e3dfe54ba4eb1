"""The certificate: the graph in ONNX Runtime against eager PyTorch, prefill and decode, in numbers.

Two rows of unequal length are prefilled together, decoded token by token and continued in a chunk,
in cache slots that are not their rows; every logit is compared with the eager model's, which runs
each row alone. No certificate, no export.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from qeff.core.errors import ParityError, SourceError
from qeff.core.progress import Event, Progress, silent
from qeff.core.spec import BATCH_INDEX, INPUT_IDS, LOGITS, POSITION_IDS, RETAINED
from qeff.export.artifact import Graph
from qeff.export.standalone import materialize
from qeff.transform.artifact import Prepared, Reference

PROMPT_LENS = (5, 9)
DECODE_STEPS, CHUNK = 4, 3
CTX_LEN, NUM_SLOTS, SLOTS = 24, 5, (3, 1)
TOLERANCE = 1e-4  # of the largest logit, when that is above 1
LIBRARIES = ("torch", "transformers", "onnxruntime", "onnx", "onnx-ir")


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far two sets of logits lie apart."""

    max_abs_error: float
    max_logit: float
    tokens: int
    equal_tokens: int  # places whose most likely next token is the same

    @property
    def is_equal(self) -> bool:
        allowed = TOLERANCE * max(1.0, self.max_logit)
        return self.max_abs_error <= allowed and self.equal_tokens == self.tokens


def certify(graph: Graph, prepared: Prepared, *, progress: Progress = silent) -> dict[str, Any]:
    """Run the comparison and give its record; ParityError when the numbers differ."""
    from qeff.export.exporter import draw

    progress(Event("check", 0, 1, "steps"))
    with prepared.reference() as reference:
        checked = graph if reference.prepared is None else draw(reference.prepared)
        with tempfile.TemporaryDirectory(prefix="qeff-check-") as folder:
            path = materialize(checked, Path(folder), progress=progress)
            found = compare(path, checked, reference)
        record = {
            "method": reference.method,
            "reason": reference.reason,
            "max_abs_error": found.max_abs_error,
            "max_logit": found.max_logit,
            "tokens_compared": found.tokens,
            "equal_greedy_tokens": found.equal_tokens,
            "prompt_lens": list(PROMPT_LENS),
            "decode_steps": DECODE_STEPS,
            "chunk": CHUNK,
            "source": prepared.source_name,
            "source_hash": prepared.source_hash,
            "unused_tensors": list(prepared.unused),
            "versions": {name: metadata.version(name) for name in LIBRARIES},
        }
    progress(Event("check", 1, 1, "steps"))
    if not np.isfinite(found.max_logit):
        raise SourceError(
            f"the logits of {graph.spec.name} are no finite numbers in the original model either",
            "the checkpoint's weights are damaged, or too large for float32",
        )
    if not found.is_equal:
        raise ParityError(
            f"the exported graph of {graph.spec.name} is off by {found.max_abs_error:.2g} "
            f"(logits up to {found.max_logit:.3g}), {found.equal_tokens} of {found.tokens} "
            "greedy tokens equal",
            "the architecture is not exported rightly; please report its model type",
        )
    return record


def compare(path: Path, graph: Graph, reference: Reference) -> Comparison:
    """Feed the same tokens to both and measure the difference."""
    total = [n + DECODE_STEPS + CHUNK for n in PROMPT_LENS]
    steps = [[n, *[1] * DECODE_STEPS, CHUNK] for n in PROMPT_LENS]
    draws = np.random.default_rng(3)
    rows = [draws.integers(3, graph.spec.vocab_size, n).tolist() for n in total]
    expected = [reference.logits(row, lens) for row, lens in zip(rows, steps, strict=True)]
    runner = GraphRunner(path, graph)
    got = runner.run(rows, steps)
    errors = [float(np.abs(a - b).max()) for a, b in zip(expected, got, strict=True)]
    same = [int(np.sum(a.argmax(-1) == b.argmax(-1))) for a, b in zip(expected, got, strict=True)]
    top = np.max([np.abs(a).max() for a in expected])  # unlike max, it keeps what is no number
    return Comparison(float(np.max(errors)), float(top), sum(total), sum(same))


class GraphRunner:
    """A materialised graph in ONNX Runtime, its caches kept between steps."""

    def __init__(self, path: Path, graph: Graph) -> None:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        self.session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.outputs = [LOGITS, *(name + RETAINED for name in graph.spec.cache_names())]
        self.is_continuous = graph.options.continuous_batching
        self.caches: dict[str, np.ndarray] = {}
        rows = NUM_SLOTS if self.is_continuous else len(PROMPT_LENS)
        for layer in graph.spec.caches:
            sizes = {layer.key_name: layer.key_dim, layer.value_name: layer.value_dim}
            for name, dim in sizes.items():
                # What unwritten places hold must not matter.
                shape = (rows, layer.num_kv_heads, CTX_LEN, dim)
                self.caches[name] = np.full(shape, 0.5, np.float32)

    def run(
        self, rows: Sequence[Sequence[int]], steps: Sequence[Sequence[int]]
    ) -> list[np.ndarray]:
        """Logits of every token of every row."""
        done = [0] * len(rows)
        found: list[list[np.ndarray]] = [[] for _ in rows]
        for lens in zip(*steps, strict=True):
            logits = self.step(rows, done, lens)
            for b, count in enumerate(lens):
                found[b].append(logits[b, :count])
                done[b] += count
        return [np.concatenate(parts) for parts in found]

    def step(
        self, rows: Sequence[Sequence[int]], done: Sequence[int], lens: Sequence[int]
    ) -> np.ndarray:
        """One step: the next ``lens[b]`` tokens of each row, padded to the longest."""
        width = max(lens)
        tokens = np.zeros((len(rows), width), np.int64)
        positions = np.full((len(rows), width), -1, np.int64)
        for b, (start, count) in enumerate(zip(done, lens, strict=True)):
            tokens[b, :count] = rows[b][start : start + count]
            positions[b, :count] = np.arange(start, start + count)
        feeds: dict[str, np.ndarray] = {INPUT_IDS: tokens, POSITION_IDS: positions, **self.caches}
        if self.is_continuous:
            feeds[BATCH_INDEX] = np.array(SLOTS, np.int64)[:, None]
        results = self.session.run(self.outputs, feeds)
        names = [name.removesuffix(RETAINED) for name in self.outputs[1:]]
        self.caches = dict(zip(names, results[1:], strict=True))
        return results[0]


def describe(certificate: Mapping[str, Any]) -> str:
    """A certificate in one line."""
    return (
        f"max abs error {certificate['max_abs_error']:.2g} against eager PyTorch "
        f"({certificate['method']}), {certificate['equal_greedy_tokens']} of "
        f"{certificate['tokens_compared']} greedy tokens equal"
    )
