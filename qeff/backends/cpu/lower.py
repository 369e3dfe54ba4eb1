"""Build for the native engine: the program as JSON, matrices as panels, other weights as float32.

What each matrix becomes is decided in ``compile/precision``, how panels lie in ``docs/panels.md``.
Weights are packed while they are written, some rows at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from qeff.compile.calibration import Calibrator
from qeff.compile.lowering import SectionWriter, token_border
from qeff.compile.matrices import Stored, rewrite, split_weights
from qeff.compile.panels.layout import panel_shape
from qeff.compile.panels.matrix import (
    Matrix,
    NoNumber,
    float_matrix,
    packed_matrix,
    stack_shape,
    unpacked_matrix,
)
from qeff.compile.panels.packing import Sums, stream_panels
from qeff.compile.passes.fold import values_of
from qeff.compile.plan import plan
from qeff.compile.plan.cutting import can_cut, read_cut
from qeff.compile.precision import Choice, choose, classes, tell_conversions
from qeff.compile.quantize.report import ErrorReport
from qeff.container.weights import ArrayStream
from qeff.core.errors import CompileError
from qeff.core.options import CompileOptions
from qeff.core.progress import log
from qeff.ops import validate

if TYPE_CHECKING:
    from qeff.export.artifact import Graph

PROGRAM = "program.json"
LAYOUT = 2  # of panels and of the engine's own settings
_UNQUANTISED = ("f32", "f16", "bf16")
_HALF_ERROR = 1e-3  # relative; rounding alone stays below half of this


@dataclass(frozen=True, slots=True)
class Packing:
    """What one weight is made of, and who is told and asked while it is packed."""

    tensor: ir.TensorProtocol
    choice: Choice | None  # None: a plain array
    report: ErrorReport
    calibrator: Calibrator


def lower(graph: Graph, options: CompileOptions, out: SectionWriter) -> None:
    """Hand over program.json and a promise for each of its weights."""
    planned, tensors = plan(graph)
    entries = split_weights(planned)
    choices = choose(entries, tensors, options)
    dtypes = {
        entry.name: choices[entry.name].format if entry.is_matrix else _plain_dtype(entry)
        for entry in entries
    }
    program = rewrite(planned, entries, dtypes)
    validate(program)
    tell_conversions(choices.values())
    report = ErrorReport()
    matrices = [(entry, choices[entry.name]) for entry in entries if entry.is_matrix]
    calibrator = Calibrator(planned, tensors, (out.calibration, options.calibration), matrices)
    for entry in calibrator.in_order(entries):
        packing = Packing(tensors[entry.source], choices.get(entry.name), report, calibrator)
        _promise(entry, packing, out)
    if any(choice.is_lossy for choice in choices.values()):
        out.add_report("quantisation", report.summary)
        out.add_report("calibration", calibrator.report)
    kv = _kv_precision(options)
    out.precision = classes(entries, choices) | {"kv": kv}
    out.inputs, out.outputs = token_border(program)
    data = program.to_json() | {"engine": {"layout": LAYOUT, "kv": kv}}
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    out.write_bytes(PROGRAM, text.encode())


def _plain_dtype(entry: Stored) -> str:
    return "f32" if entry.dtype in ("f16", "bf16") else entry.dtype


def _kv_precision(options: CompileOptions) -> str:
    if options.kv_precision != "auto":
        return options.kv_precision
    return "fp32" if options.precision == "fp32" else "fp16"


def _promise(entry: Stored, packing: Packing, out: SectionWriter) -> None:
    choice = packing.choice
    if choice is None:
        dtype = _plain_dtype(entry)
        out.add_weight(entry.name, entry.shape, dtype, partial(_plain, packing.tensor, dtype))
        return
    shape = panel_shape(choice.format, entry.matrix_shape)

    def produce() -> ArrayStream:
        return ArrayStream(shape, np.dtype(np.uint8), _stream(entry, packing, choice))

    out.add_weight(entry.name, shape, "u8", produce)


def _plain(tensor: ir.TensorProtocol, dtype: str) -> np.ndarray:
    values = np.asarray(values_of(tensor))
    return values.astype(np.float32, copy=False) if dtype == "f32" else values


def _stream(entry: Stored, packing: Packing, choice: Choice) -> Iterator[np.ndarray]:
    """The panels of one matrix; its error goes into the report once it is known."""
    sums, report = Sums(), packing.report
    sensitivity = packing.calibrator.sensitivity(entry)
    matrix = _open(entry, packing.tensor, choice)
    try:
        yield from stream_panels(matrix, choice.format, sums, sensitivity=sensitivity)
    except NoNumber as error:
        raise CompileError(
            f"the weight {entry.source} is damaged: {error}", "download the checkpoint again"
        ) from error
    if choice.format == "f16" and sums.error > _HALF_ERROR**2 * sums.energy:
        log.warning("the weight %s has values outside the range of fp16", entry.source)
    if not choice.is_lossy:
        return
    for role in sorted(entry.roles):
        report.add(role, entry.source, sums.error, sums.energy)
    if choice.packed is not None:
        kind = f"{choice.packed.format} as {choice.format}"
        report.add(kind, entry.source, sums.error, sums.energy)


def _open(entry: Stored, tensor: ir.TensorProtocol, choice: Choice) -> Matrix:
    if choice.packed is not None:
        return packed_matrix(choice.packed) if choice.is_exact else unpacked_matrix(choice.packed)
    if len(entry.shape) == len(entry.matrix_shape) and can_cut(tensor):
        return _cut_matrix(entry, tensor)
    values = np.asarray(values_of(tensor))
    if not entry.is_transposed:
        values = values.reshape(entry.matrix_shape)
    return float_matrix(values, entry.is_transposed)


def _cut_matrix(entry: Stored, tensor: ir.TensorProtocol) -> Matrix:
    """A matrix whose rows are read from wherever they are stored."""
    shape = stack_shape(entry.shape)

    def read(index: int, start: int, stop: int) -> np.ndarray:
        ends = ((start, stop), (0, shape[2]))
        ends = ends[::-1] if entry.is_transposed else ends
        part = read_cut(tensor, ((index, index + 1), *ends) if entry.is_stack else ends)
        part = part.reshape(part.shape[-2:])
        return np.ascontiguousarray(part.T if entry.is_transposed else part, np.float32)

    return Matrix(shape, read)
