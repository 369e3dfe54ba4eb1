"""Build for the CUDA engine: the program as JSON, matrices as the GPU's kernels read them.

Float matrices have the compute type, packed ones are two tensors, codes and scales, as ``layout``
says. What each matrix becomes is decided in ``compile/precision``. Random weights of a checkpoint
that is not there are left out and named, for the session to draw them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import onnx_ir as ir

from qeff.backends.cuda import layout
from qeff.compile.calibration import Calibrator
from qeff.compile.lowering import SectionWriter, token_border
from qeff.compile.matrices import Stored, rewrite, split_weights
from qeff.compile.panels.matrix import (
    Matrix,
    NoNumber,
    float_matrix,
    packed_matrix,
    unpacked_matrix,
)
from qeff.compile.panels.packing import Sums, stream_codes
from qeff.compile.passes.fold import values_of
from qeff.compile.plan import plan
from qeff.compile.precision import CONVERTED, Choice, choose, classes, tell_conversions
from qeff.compile.quantize.report import ErrorReport
from qeff.container.program import Program
from qeff.container.weights import ArrayStream, WeightSpec
from qeff.core.errors import CompileError
from qeff.core.options import CompileOptions
from qeff.export.artifact import CheckpointTensor
from qeff.ops import validate

if TYPE_CHECKING:
    from qeff.export.artifact import Graph

PROGRAM = "program.json"
LAYOUT = 1  # of packed matrices and of the engine's own settings
SCALES = ".scales"  # behind a matrix's name, its scales
FP8 = "fp8"
_COMPUTE = {"fp32": "f32", "fp16": "f16"}  # of weights; all else is computed in bf16
_LABELS = {"f32": "fp32", "f16": "fp16", "bf16": "bf16"}
_DTYPES = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
}
_LARGEST_HALF = np.float32(65504)


@dataclass(frozen=True, slots=True)
class Packing:
    """What one weight is made of, and who is told and asked while it is packed."""

    tensor: ir.TensorProtocol
    choice: Choice
    report: ErrorReport
    calibrator: Calibrator


@dataclass(slots=True)
class Written:
    """What the program's engine section says of the weights."""

    drawn: list[str] = field(default_factory=list)  # random matrices that no file holds


def lower(graph: Graph, options: CompileOptions, out: SectionWriter) -> None:
    """Hand over program.json and promises for its weights."""
    compute = _COMPUTE.get(options.precision, "bf16")
    kv = _kv_format(options, compute)
    planned, tensors = plan(graph)
    entries = split_weights(planned)
    found = choose(entries, tensors, options)
    choices = {
        entry.name: _exact_table(found[entry.name])
        if _is_special_table(entry, planned)
        else _fit(entry, found[entry.name], compute)
        for entry in entries
        if entry.is_matrix
    }
    dtypes = {
        entry.name: choices[entry.name].format if entry.is_matrix else _plain_dtype(entry)
        for entry in entries
    }
    program = rewrite(planned, entries, dtypes)
    validate(program)
    tell_conversions(choices.values())
    report, written = ErrorReport(), Written()
    matrices = [(entry, choices[entry.name]) for entry in entries if entry.is_matrix]
    calibrator = Calibrator(planned, tensors, (out.calibration, options.calibration), matrices)
    for entry in calibrator.in_order(entries):
        tensor = tensors[entry.source]
        if not entry.is_matrix:
            dtype = _plain_dtype(entry)
            out.add_weight(entry.name, entry.shape, dtype, partial(_plain, tensor, dtype))
        elif _is_random(entry, tensor):
            written.drawn.append(entry.name)
        else:
            packing = Packing(tensor, choices[entry.name], report, calibrator)
            _promise(entry, packing, out)
    if any(choice.is_lossy for choice in choices.values()) and not written.drawn:
        out.add_report("quantisation", report.summary)
        out.add_report("calibration", calibrator.report)
    out.has_all_weights = not written.drawn
    out.precision = classes(entries, choices) | {"kv": _LABELS.get(kv, kv)}
    out.inputs, out.outputs = token_border(program)
    engine = {"layout": LAYOUT, "compute": compute, "kv": kv, "drawn": sorted(written.drawn)}
    data = program.to_json() | {"engine": engine}
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    out.write_bytes(PROGRAM, text.encode())


def _plain_dtype(entry: Stored) -> str:
    return "f32" if entry.dtype in ("f16", "bf16") else entry.dtype


def _kv_format(options: CompileOptions, compute: str) -> str:
    """The cache's format: that of the activations, or a narrow one."""
    asked = options.kv_precision
    if asked in ("auto", _LABELS[compute]):
        return compute
    if asked in ("fp8", "mxint8"):
        return asked
    raise CompileError(
        f"the target cuda keeps its cache in {_LABELS[compute]} beside these weights, or in fp8 or"
        f" mxint8, not in {asked}",
        "leave the cache's precision out",
    )


def _fit(entry: Stored, choice: Choice, compute: str) -> Choice:
    """A format that the engine has, nearest to the one chosen."""
    if choice.format in _DTYPES:
        if entry.roles == {"other"} and not entry.is_stack and choice.packed is None:
            return replace(choice, format=compute, label=_LABELS[compute])
        if choice.label not in ("fp16", _LABELS[compute]):
            raise CompileError(
                f"the target cuda keeps float matrices in {_LABELS[compute]}, its compute type"
                f" here, and {entry.source} is asked for in {choice.label}",
                "leave that override out",
            )
        return replace(choice, format=compute, label=_LABELS[compute])
    if choice.format in layout.FORMATS or choice.format == FP8:
        return choice
    return Choice(CONVERTED, CONVERTED, choice.packed)


def _is_special_table(entry: Stored, planned: Program) -> bool:
    """Whether a table is looked up by something that is no token, such as angles by position."""
    return entry.roles == {"other"} and all(
        planned.ops[place].kind == "embed" for place, _ in entry.uses
    )


def _exact_table(choice: Choice) -> Choice:
    return replace(choice, format="f32", label="fp32")


def _is_random(entry: Stored, tensor: ir.TensorProtocol) -> bool:
    """Whether a large matrix is drawn, and nobody's weights."""
    if not isinstance(tensor, CheckpointTensor) or entry.roles == {"other"}:
        return False
    return bool(getattr(tensor.lazy, "is_random", False))


def _promise(entry: Stored, packing: Packing, out: SectionWriter) -> None:
    form = packing.choice.format
    if form in _DTYPES:
        out.add_weight(entry.name, entry.shape, form, partial(_floats, entry, packing, form))
        return
    rows = int(np.prod(entry.matrix_shape[:-1], dtype=np.int64))
    shape = (rows, entry.matrix_shape[-1])
    scales_shape: tuple[int, ...]
    if form == FP8:
        codes_shape, scales_shape, scales = shape, (rows,), np.dtype(np.float32)
    else:
        codes_shape = layout.codes_shape(form, shape)
        scales_shape = layout.scales_shape(form, shape)
        scales = layout.scales_dtype(form)
    names = {np.dtype(np.float32): "f32", np.dtype(np.float16): "f16", np.dtype(np.uint8): "u8"}
    specs = [
        WeightSpec(entry.name, codes_shape, "u8"),
        WeightSpec(entry.name + SCALES, scales_shape, names[scales]),
    ]

    def produce() -> Sequence[ArrayStream]:
        kept: list[np.ndarray] = []  # small beside the codes, and written behind them
        codes = _codes(entry, packing, kept.append)
        return (
            ArrayStream(codes_shape, np.dtype(np.uint8), codes),
            ArrayStream(scales_shape, scales, iter_kept(kept)),
        )

    out.add_weights(specs, produce)


def iter_kept(kept: list[np.ndarray]) -> Iterator[np.ndarray]:
    """What a list holds by the time it is asked for."""
    yield from kept


def _codes(
    entry: Stored, packing: Packing, keep: Callable[[np.ndarray], None]
) -> Iterator[np.ndarray]:
    """The codes of one matrix as they lie, its scales kept, its error told."""
    sums, choice, form = Sums(), packing.choice, packing.choice.format
    sensitivity = packing.calibrator.sensitivity(entry)
    try:
        for coded in stream_codes(_open(entry, packing), form, sums, sensitivity):
            (scales,) = coded.inner
            if form == FP8:
                codes = coded.codes
            else:
                codes, scales = layout.pack_rows(form, coded.codes, scales)
            keep(scales)
            yield codes
    except NoNumber as error:
        raise CompileError(
            f"the weight {entry.source} is damaged: {error}", "download the checkpoint again"
        ) from error
    if not choice.is_lossy:
        return
    for role in sorted(entry.roles):
        packing.report.add(role, entry.source, sums.error, sums.energy)
    if choice.packed is not None:
        kind = f"{choice.packed.format} as {choice.format}"
        packing.report.add(kind, entry.source, sums.error, sums.energy)


def _open(entry: Stored, packing: Packing) -> Matrix:
    choice = packing.choice
    if choice.packed is not None:
        return packed_matrix(choice.packed) if choice.is_exact else unpacked_matrix(choice.packed)
    values = np.asarray(values_of(packing.tensor))
    if not entry.is_transposed:
        values = values.reshape(entry.matrix_shape)
    return float_matrix(values, entry.is_transposed)


def _floats(entry: Stored, packing: Packing, form: str) -> np.ndarray:
    """A matrix of plain numbers, rows before columns."""
    packed = packing.choice.packed
    values = np.asarray(values_of(packing.tensor)) if packed is None else packed.read()
    if entry.is_transposed:
        values = values.swapaxes(-1, -2)
    if form == "f16" and values.dtype != np.float16:
        values = np.clip(values.astype(np.float32, copy=False), -_LARGEST_HALF, _LARGEST_HALF)
    return np.ascontiguousarray(values.astype(_DTYPES[form], copy=False)).reshape(entry.shape)


def _plain(tensor: ir.TensorProtocol, dtype: str) -> np.ndarray:
    values = np.asarray(values_of(tensor))
    return values.astype(np.float32, copy=False) if dtype == "f32" else values
