"""The back-ends' ahead-of-time door: find ``lower`` by the target's name, collect what it gives.

A back-end hands over small files at once and weights as promises; the promises are kept one at a
time while the weights file is written, so memory does not grow with the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from qeff.compile.targets import available_targets, has_lowering
from qeff.container.manifest import Port
from qeff.container.program import Program
from qeff.container.weights import ArrayStream, Entry, WeightGroup, WeightSpec, lay_out
from qeff.core.errors import CompileError
from qeff.core.options import CompileOptions
from qeff.core.spec import INPUT_IDS, LOGITS, POSITION_IDS

if TYPE_CHECKING:
    from qeff.compile.calibration import Calibration
    from qeff.export.artifact import Graph


class SectionWriter:
    """What a back-end puts into a container; nothing is written before ``lower`` has returned.

    ``precision`` tells the number format of each weight class; ``inputs`` and ``outputs`` the
    border of the program. ``calibration`` is what a back-end may try the float model on.
    """

    def __init__(self, calibration: Calibration | None = None) -> None:
        self.calibration = calibration
        self.files: dict[str, bytes] = {}
        self.groups: list[WeightGroup] = []
        self.precision: dict[str, str] = {}
        self.inputs: tuple[Port, ...] = ()
        self.outputs: tuple[Port, ...] = ()
        self.has_all_weights = True  # False: some are made where the program runs
        self._reports: dict[str, Callable[[], Mapping[str, Any]]] = {}

    def write_bytes(self, name: str, data: bytes) -> None:
        """Add a small file."""
        assert name not in self.files, f"{name} twice"
        self.files[name] = data

    def add_weight(
        self,
        name: str,
        shape: tuple[int, ...],
        format: str,
        produce: Callable[[], np.ndarray | ArrayStream],
    ) -> None:
        """Promise one tensor; ``produce`` is called once, when its turn comes."""
        self.add_weights([WeightSpec(name, shape, format)], lambda: (produce(),))

    def add_weights(
        self,
        specs: Sequence[WeightSpec],
        produce: Callable[[], Sequence[np.ndarray | ArrayStream]],
    ) -> None:
        """Promise several tensors that are computed together."""
        self.groups.append(WeightGroup(tuple(specs), produce))

    def places(self) -> dict[str, Entry]:
        """Where every promised tensor will lie in the weights file."""
        layout = lay_out(spec for group in self.groups for spec in group.specs)
        return {entry.name: entry for entry in layout.entries}

    def add_report(self, name: str, report: Callable[[], Mapping[str, Any]]) -> None:
        """Add a part of the certificate that is known once the weights are written."""
        self._reports[name] = report

    def reports(self) -> dict[str, Any]:
        """Every report, asked for after the weights were written."""
        return {name: dict(report()) for name, report in self._reports.items()}


class Lower(Protocol):
    """The one function of ``backends/<target>/lower.py``."""

    def __call__(self, graph: Graph, options: CompileOptions, out: SectionWriter) -> None: ...


def token_border(program: Program) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """What goes into a program for each token, and what comes out for each row."""
    logits = program.values[program.logits]
    inputs = (Port(INPUT_IDS, "i64", ("tokens",)), Port(POSITION_IDS, "i64", ("tokens",)))
    return inputs, (Port(LOGITS, logits.dtype, ("rows", *logits.shape)),)


def refuse_overrides(options: CompileOptions) -> None:
    """Raise for a target that has one precision for all matrices, and one way to round them."""
    if options.precision_overrides:
        raise CompileError(
            f"the target {options.target} has no precision for single weights",
            "leave the overrides out, or compile for the target cpu",
        )
    if options.calibration not in ("auto", "none") or options.calibration_file is not None:
        raise CompileError(
            f"the target {options.target} has no calibration",
            "leave it out, or compile for the target cpu",
        )


def find_lowering(target: str) -> Lower:
    """The target's ``lower``, or an error that lists the targets there are."""
    if not has_lowering(target):
        raise CompileError(
            f"this release cannot compile for the target {target!r}",
            f"available: {', '.join(available_targets())}",
        )
    lower: Lower = import_module(f"qeff.backends.{target}.lower").lower
    return lower
