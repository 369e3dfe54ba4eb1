"""The ladder of parity for one architecture: eager PyTorch = ONNX Runtime = reference = native.

The same ragged rows go through the graph and through the lowered program: prefill, four decode
steps and a chunk of three, in cache slots and blocks that are not in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qeff.backends.cpu.session import NativeSession
from qeff.backends.reference.session import ReferenceSession
from qeff.compile.compiler import compile_graph
from qeff.compile.plan import plan
from qeff.container import Container
from qeff.core.options import CompileOptions, ExportOptions
from qeff.export.artifact import Graph
from qeff.export.exporter import draw
from qeff.export.parity import CHUNK, DECODE_STEPS, PROMPT_LENS, Comparison, compare
from qeff.export.standalone import materialize
from qeff.ops.interpreter import Interpreter
from qeff.runtime import open_session
from qeff.runtime.session import Batch, Capabilities, Session, Span
from qeff.transform.reference import EagerReference, make_twin

REFERENCE_BLOCK_LEN = 4
NUM_BLOCKS = 12
BLOCKS = ((7, 2, 11, 4), (9, 0, 5, 8))  # of each row, in no order


@dataclass(frozen=True, slots=True)
class Ladder:
    """What was compared: the graph, and how far each step of the ladder is from eager."""

    graph: Graph
    onnx: Comparison
    program: Comparison | None
    native: Comparison | None


def climb(config, folder: Path, *, continuous: bool = False, lower: bool = True) -> Ladder:
    """Export a random model of this config and compare every step with transformers."""
    options = ExportOptions(continuous_batching=continuous)
    reference = make_twin(config, folder / "checkpoint", options)
    assert reference.prepared is not None
    graph = draw(reference.prepared)
    onnx = compare(materialize(graph, folder / "standalone"), graph, reference)
    if not lower:
        return Ladder(graph, onnx, None, None)
    native = compare_session(open_native(graph, folder / "native"), reference)
    return Ladder(graph, onnx, compare_session(open_reference(graph), reference), native)


def open_reference(graph: Graph) -> Session:
    """The lowered program in numpy, with blocks that are shorter than the rows."""
    program, tensors = plan(graph)
    arrays = {name: np.asarray(tensor.numpy()) for name, tensor in tensors.items()}
    ctx_len = REFERENCE_BLOCK_LEN * len(BLOCKS[0])
    caps = Capabilities(graph.spec.vocab_size, ctx_len, REFERENCE_BLOCK_LEN, len(BLOCKS), 16)
    return ReferenceSession(Interpreter(program, arrays), caps)


def open_native(graph: Graph, folder: Path, precision: str = "fp32") -> NativeSession:
    """The graph compiled for the native engine."""
    options = CompileOptions(target="cpu", precision=precision)
    out = compile_graph(graph, options, text_files={}, provenance={}, out=folder)
    return open_session(Container.open(out), threads=2)


def compare_session(session: Session, reference: EagerReference) -> Comparison:
    """Run the same tokens as the certificate's comparison, in blocks that are not in order."""
    vocab = session.caps.vocab_size
    session.reserve(NUM_BLOCKS)
    draws = np.random.default_rng(4)
    steps = [[n, *[1] * DECODE_STEPS, CHUNK] for n in PROMPT_LENS]
    rows = [draws.integers(3, vocab, sum(lens)) for lens in steps]
    expected = [reference.logits(r.tolist(), lens) for r, lens in zip(rows, steps, strict=True)]
    found: list[list[np.ndarray]] = [[] for _ in rows]
    done = [0] * len(rows)
    for lens in zip(*steps, strict=True):
        logits = session.step(_batch(rows, done, lens, session.caps.block_len)).logits
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


def _batch(rows: list[np.ndarray], done: list[int], lens: tuple[int, ...], block_len: int) -> Batch:
    tokens, positions, spans = [], [], []
    num_tokens = 0
    for i in reversed(range(len(rows))):
        stop = done[i] + lens[i]
        tokens.append(rows[i][done[i] : stop])
        positions.append(np.arange(done[i], stop))
        used = BLOCKS[i][: -(-stop // block_len)]
        spans.append(Span(num_tokens, num_tokens + lens[i], used))
        num_tokens += lens[i]
    return Batch(
        np.concatenate(tokens), np.concatenate(positions), tuple(spans), np.arange(num_tokens)
    )
