"""What the float model's activations say about its matrices, for the quantisers.

The planned program is run in float32 on a text, as far as the matrix whose turn it is, so that one
layer's activations are in memory at a time. Decides which matrices are calibrated and how; the
arithmetic is in ``quantize/feedback``. Knows no tokenizer: it is given tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from qeff.compile.matrices import Stored
from qeff.compile.precision import Choice
from qeff.compile.quality import Reading
from qeff.compile.quantize.feedback import Sensitivity, sensitivity_of
from qeff.compile.walk import Walk
from qeff.container.program import Program
from qeff.core.progress import log

_FORMATS = ("q4_0", "mxfp4", "mxfp6", "mxfp8")  # eight whole bits lose too little to be worth it
_MAX_VALUES = 1 << 25  # of the widest activation, for all tokens together
_UP = 3  # the input of a product of experts that reads the activations themselves


@dataclass(frozen=True, slots=True)
class Calibration:
    """Sequences of tokens to run the float model on, and what they are."""

    tokens: np.ndarray  # int64 [sequences, length]
    text: str  # what the tokens are, in a few words


class Calibrator:
    """The sensitivities of a program's matrices, asked for in the order of ``in_order``."""

    def __init__(
        self,
        program: Program,
        tensors: Mapping[str, ir.TensorProtocol],
        given: tuple[Calibration | None, str],  # the text, and the method that was asked for
        matrices: Sequence[tuple[Stored, Choice]],
    ) -> None:
        calibration, asked = given
        self.method = "gptq" if asked == "auto" else asked
        self._program, self._calibration = program, calibration
        wanted = [] if calibration is None or asked == "none" else _lossy(matrices)
        self._places = {e.name: at for e in wanted if (at := _place(e, program)) is not None}
        self._plain = [entry.source for entry in wanted if entry.name not in self._places]
        self._num_tokens = 0
        self._walk: Walk | None = None
        self._latest: tuple[int, Sensitivity | None] = (-1, None)
        if calibration is not None and self._places:
            tokens = _fitting(calibration.tokens, program)
            self._num_tokens = tokens.size
            self._walk = Walk(program, Reading(tensors), tokens)
        if self._plain:
            log.warning(
                "%d matrices are rounded without calibration, such as %s: their inputs lie inside"
                " an op",
                len(self._plain),
                self._plain[0],
            )

    def in_order(self, entries: Iterable[Stored]) -> list[Stored]:
        """The entries as they can be written: what is calibrated when its inputs are known."""
        return sorted(entries, key=lambda e: self._places.get(e.name, min(e.uses)[0]))

    def sensitivity(self, entry: Stored) -> Sensitivity | None:
        """How errors in the matrix's columns count; None: it is rounded plainly."""
        place = self._places.get(entry.name)
        if place is None or self._walk is None:
            return None
        index = self._program.ops[place].inputs[0]
        if self._latest[0] != index:  # products of the same input stand side by side
            inputs = self._walk.inputs_of(place)[0]
            self._latest = (index, self._measure(inputs, entry))
        return self._latest[1]

    def report(self) -> dict[str, Any]:
        """For the certificate, once the weights are written."""
        if not self._places or self._calibration is None:
            return {"method": "none"}
        return {
            "method": self.method,
            "text": self._calibration.text,
            "tokens": self._num_tokens,
            "matrices": len(self._places),
            "uncalibrated": sorted(self._plain),
        }

    def _measure(self, inputs: np.ndarray, entry: Stored) -> Sensitivity | None:
        flat = inputs.reshape(-1, inputs.shape[-1]).astype(np.float32, copy=False)
        if not np.isfinite(flat).all():
            log.warning("%s is rounded without calibration: its inputs overflow", entry.source)
            self._plain.append(entry.source)
            return None
        return sensitivity_of(flat, has_feedback=self.method == "gptq")


def _lossy(matrices: Sequence[tuple[Stored, Choice]]) -> list[Stored]:
    """The matrices that gain from calibration: coarse ones that the checkpoint has as floats."""
    return [
        entry
        for entry, choice in matrices
        if choice.packed is None and choice.format in _FORMATS and entry.roles != {"embedding"}
    ]


def _place(entry: Stored, program: Program) -> int | None:
    """The op whose input decides: the matrix's last product."""
    found = [
        place
        for place, slot in entry.uses
        if program.ops[place].kind == "linear" or (program.ops[place].kind, slot) == ("moe", _UP)
    ]
    return max(found, default=None)


def _fitting(tokens: np.ndarray, program: Program) -> np.ndarray:
    """As many sequences as their activations fit into memory."""
    widths = [int(np.prod(v.shape)) for v in program.values if v.kind == "token"]
    count = _MAX_VALUES // (max(widths, default=1) * tokens.shape[1])
    return tokens[: max(1, count)]
