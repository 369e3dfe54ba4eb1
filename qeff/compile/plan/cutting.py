"""Part of a computed constant without the rest of it.

A slice goes through the ops that only move values (stacking, joining, turning) down to the tensors
of the checkpoint, so that a stack of experts never lies in memory whole. What cannot be cut is read
whole by the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from qeff.compile.passes.fold import values_of
from qeff.compile.plan.constants import MADE, Made, shape_of
from qeff.export.artifact import CheckpointTensor

Cut = tuple[tuple[int, int], ...]  # start and stop along each axis


def can_cut(tensor: ir.TensorProtocol) -> bool:
    """Whether a part can be read without reading or computing the whole."""
    made = _made(tensor)
    if made is None:
        return _is_stored(tensor)
    if made.op_type == "Reshape" and _without_ones(tensor) != _without_ones(made.inputs[0]):
        return False
    if made.op_type not in _CUTTERS:
        return False
    sources = made.inputs if made.op_type == "Concat" else made.inputs[:1]
    return all(can_cut(source) for source in sources)


def read_cut(tensor: ir.TensorProtocol, cut: Cut) -> np.ndarray:
    """The part of a tensor for which ``can_cut`` holds."""
    made = _made(tensor)
    if made is None:
        return np.asarray(values_of(tensor)[tuple(slice(*ends) for ends in cut)])
    return _CUTTERS[made.op_type](made, cut)


def _made(tensor: ir.TensorProtocol) -> Made | None:
    found = tensor.meta.get(MADE)
    return found if isinstance(found, Made) else None


def _is_stored(tensor: ir.TensorProtocol) -> bool:
    """Whether the values lie in a file, or in memory already, as they are."""
    if isinstance(tensor, CheckpointTensor):
        return tensor.lazy.location is not None
    return isinstance(tensor, ir.ExternalTensor | ir.Tensor)


def _without_ones(tensor: ir.TensorProtocol) -> list[int]:
    return [size for size in shape_of(tensor) if size != 1]


def _join(made: Made, cut: Cut) -> np.ndarray:
    axis = int(made.attributes["axis"]) % len(cut)
    start, stop = cut[axis]
    pieces, begin = [], 0
    for source in made.inputs:
        size = shape_of(source)[axis]
        ends = max(start - begin, 0), min(stop - begin, size)
        begin += size
        if ends[0] < ends[1]:
            pieces.append(read_cut(source, (*cut[:axis], ends, *cut[axis + 1 :])))
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=axis)


def _regroup(made: Made, cut: Cut) -> np.ndarray:
    """A reshape that adds or drops axes of size one."""
    real = iter([ends for ends, size in zip(cut, made.shape, strict=True) if size != 1])
    source = made.inputs[0]
    inner = tuple((0, 1) if size == 1 else next(real) for size in shape_of(source))
    return read_cut(source, inner).reshape([stop - start for start, stop in cut])


def _turn(made: Made, cut: Cut) -> np.ndarray:
    source = made.inputs[0]
    perm: Sequence[int] = made.attributes.get("perm") or range(len(cut))[::-1]
    inner = [cut[list(perm).index(axis)] for axis in range(len(cut))]
    return read_cut(source, tuple(inner)).transpose(perm)


def _same(made: Made, cut: Cut) -> np.ndarray:
    return read_cut(made.inputs[0], cut)


def _cast(made: Made, cut: Cut) -> np.ndarray:
    dtype = ir.DataType(made.attributes["to"]).numpy()
    return np.asarray(read_cut(made.inputs[0], cut)).astype(dtype, copy=False)


_CUTTERS: dict[str, Callable[[Made, Cut], np.ndarray]] = {
    "Concat": _join,
    "Reshape": _regroup,
    "Transpose": _turn,
    "Identity": _same,
    "Cast": _cast,
}
