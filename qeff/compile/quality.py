"""How far a container's logits are from the graph's, for the certificate.

The graph is run in float32 by the ops' own references, one tensor in memory at a time, and the
container by whoever can open it. Knows nothing of sessions: the caller gives a function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from qeff.compile.passes.fold import values_of
from qeff.compile.plan import plan
from qeff.core.divergence import divergence, log_softmax
from qeff.ops import Step
from qeff.ops.interpreter import Interpreter

if TYPE_CHECKING:
    from qeff.compile.calibration import Calibration
    from qeff.export.artifact import Graph

_DIGITS = 3  # more would depend on the machine that measured
_MAX_LOGITS = 1 << 24


@dataclass(frozen=True, slots=True)
class Probe:
    """Tokens to compare on, what they are, and how to get a container's logits [T, vocab].

    ``calibration`` is another text, for the quantisers, so that none is measured on its own.
    """

    tokens: np.ndarray  # int64 [T], one sequence
    text: str  # what the tokens are, in a word
    run: Callable[[Path, np.ndarray], np.ndarray]
    calibration: Calibration | None = None


def measure(graph: Graph, container: Path, probe: Probe) -> dict[str, Any]:
    """Divergence and agreement of a container with the graph in float32."""
    count = max(1, min(len(probe.tokens), _MAX_LOGITS // graph.spec.vocab_size))
    tokens = probe.tokens[:count]
    found = probe.run(container, tokens)  # first: it is quick, and fails where nothing can run it
    expected = reference_logits(graph, tokens)[:, : graph.spec.vocab_size]  # heads may follow
    return {
        "kl": _rounded(float(np.mean(list(_divergences(expected, found))))),
        "top1": _rounded(float((expected.argmax(-1) == found.argmax(-1)).mean())),
        "tokens": count,
        "text": probe.text,
    }


def reference_logits(graph: Graph, tokens: np.ndarray) -> np.ndarray:
    """The logits [T, vocab] of one sequence in float32."""
    program, tensors = plan(graph)
    interpreter = Interpreter(program, Reading(tensors))
    num_tokens = len(tokens)
    interpreter.reserve(1, num_tokens)
    places = np.arange(num_tokens)
    step = Step(
        positions=places,
        owners=np.zeros(num_tokens, np.int64),
        slots=places,
        rows=places,
        tables=(np.zeros(1, np.int64),),
        caches=interpreter.caches,
    )
    return interpreter.run(tokens, step)


def _divergences(expected: np.ndarray, found: np.ndarray) -> Iterator[float]:
    """Row by row, since two rows of a large vocabulary in float64 are megabytes."""
    for wanted, got in zip(expected, found, strict=True):
        yield float(divergence(log_softmax(wanted[None]), log_softmax(got[None]))[0])


def _rounded(number: float) -> float:
    return float(f"{number:.{_DIGITS}g}")


class Reading(Mapping[str, np.ndarray]):
    """Weights that are computed when they are asked for and not kept."""

    def __init__(self, tensors: Mapping[str, ir.TensorProtocol]) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> np.ndarray:
        return np.asarray(values_of(self._tensors[name]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
