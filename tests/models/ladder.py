"""The ladder of parity for one architecture: eager PyTorch = ONNX Runtime = the numpy reference.

The same ragged rows go through the graph and through the lowered program: prefill, four decode
steps and a chunk of three, in cache slots and blocks that are not in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qeff.backends.reference.session import Interpreter, ReferenceSession
from qeff.compile.plan import plan
from qeff.core.options import ExportOptions
from qeff.export.artifact import Graph
from qeff.export.exporter import draw
from qeff.export.parity import CHUNK, DECODE_STEPS, PROMPT_LENS, Comparison, compare
from qeff.export.standalone import materialize
from qeff.runtime.session import Batch, Capabilities, Span
from qeff.transform.reference import EagerReference, make_twin

BLOCK_LEN = 4
BLOCKS = ((7, 2, 11, 4), (9, 0, 5, 8))  # of each row, in no order


@dataclass(frozen=True, slots=True)
class Ladder:
    """What was compared: the graph, and how far each step of the ladder is from eager."""

    graph: Graph
    onnx: Comparison
    program: Comparison | None


def climb(config, folder: Path, *, continuous: bool = False, lower: bool = True) -> Ladder:
    """Export a random model of this config and compare every step with transformers."""
    options = ExportOptions(continuous_batching=continuous)
    reference = make_twin(config, folder / "checkpoint", options)
    assert reference.prepared is not None
    graph = draw(reference.prepared)
    onnx = compare(materialize(graph, folder / "standalone"), graph, reference)
    return Ladder(graph, onnx, compare_program(graph, reference) if lower else None)


def compare_program(graph: Graph, reference: EagerReference) -> Comparison:
    """Run the lowered program on the same tokens as the certificate's comparison."""
    program, tensors = plan(graph)
    arrays = {name: np.asarray(tensor.numpy()) for name, tensor in tensors.items()}
    vocab = graph.spec.vocab_size
    caps = Capabilities(vocab, BLOCK_LEN * len(BLOCKS[0]), BLOCK_LEN, len(BLOCKS), 16)
    session = ReferenceSession(Interpreter(program, arrays), caps)
    session.reserve(12)
    draws = np.random.default_rng(4)
    steps = [[n, *[1] * DECODE_STEPS, CHUNK] for n in PROMPT_LENS]
    rows = [draws.integers(3, vocab, sum(lens)) for lens in steps]
    expected = [reference.logits(r.tolist(), lens) for r, lens in zip(rows, steps, strict=True)]
    found: list[list[np.ndarray]] = [[] for _ in rows]
    done = [0] * len(rows)
    for lens in zip(*steps, strict=True):
        logits = session.step(_batch(rows, done, lens)).logits
        start = 0
        for i in reversed(range(len(rows))):  # the batch holds the rows from last to first
            found[i].append(logits[start : start + lens[i]])
            start += lens[i]
            done[i] += lens[i]
    session.close()
    got = [np.concatenate(parts) for parts in found]
    pairs = list(zip(expected, got, strict=True))
    return Comparison(
        max(float(np.abs(a - b).max()) for a, b in pairs),
        max(float(np.abs(a).max()) for a in expected),
        sum(len(a) for a in expected),
        sum(int(np.sum(a.argmax(-1) == b.argmax(-1))) for a, b in pairs),
    )


def _batch(rows: list[np.ndarray], done: list[int], lens: tuple[int, ...]) -> Batch:
    tokens, positions, spans = [], [], []
    num_tokens = 0
    for i in reversed(range(len(rows))):
        stop = done[i] + lens[i]
        tokens.append(rows[i][done[i] : stop])
        positions.append(np.arange(done[i], stop))
        used = BLOCKS[i][: -(-stop // BLOCK_LEN)]
        spans.append(Span(num_tokens, num_tokens + lens[i], used))
        num_tokens += lens[i]
    return Batch(
        np.concatenate(tokens), np.concatenate(positions), tuple(spans), np.arange(num_tokens)
    )
