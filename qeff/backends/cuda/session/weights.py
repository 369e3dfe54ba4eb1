"""A container's weights on the device: matrices merged as ``merging`` says, arrays as they are.

Large ones go through pinned memory beside each other's reading; those that no file holds are
drawn. Knows nothing of what runs on them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from qeff.backends.cuda import layout
from qeff.backends.cuda.session.drawing import draw
from qeff.backends.cuda.session.flow import Flow
from qeff.backends.cuda.session.matrix import PLAIN, Matrix
from qeff.backends.cuda.session.merging import Group
from qeff.backends.cuda.session.reading import SCALES, Opened
from qeff.backends.cuda.session.staging import Stager
from qeff.backends.cuda.session.tables import position_tables
from qeff.container.program import Program
from qeff.container.reader import Container
from qeff.core.errors import ContainerError
from qeff.ops.base import MATRICES

_MATRIX_INPUTS = {"linear": (1,), "moe": (3, 4), "embed": (0,)}
_SCALE_DTYPES = {np.dtype(np.float16): torch.float16, np.dtype(np.uint8): torch.uint8}


@dataclass(frozen=True, slots=True)
class _Place:
    """Rows of a matrix in memory that hold a weight."""

    matrix: Matrix
    start: int
    stop: int


class Weights:
    """Everything that stages read and no step changes."""

    def __init__(self, container: Container, opened: Opened, device: torch.device) -> None:
        self._container, self._opened, self._device = container, opened, device
        self._program = opened.program
        self._places: dict[int, _Place] = {}
        self._plain: dict[int, torch.Tensor] = {}
        self._tables: dict[int, torch.Tensor] = {}

    def load(self, flow: Flow, groups: Sequence[Group], ctx_len: int) -> None:
        """Read, or draw, all matrices, and compute what follows from positions.

        On the device ``meta``, which holds nothing, no matrix is read: it tells their sizes.
        """
        sets = [[flow.inputs[place][1] for place in group.places] for group in groups]
        taken = {value for values in sets for value in values}
        sets += [[value] for value in self._matrix_values() if value not in taken]
        done: set[int] = set()
        with Stager(self._device) as stager:
            for values in sets:
                if done.isdisjoint(values):
                    self._load_matrix(values, stager)
                    done.update(values)
        found = position_tables(self._program, ctx_len, self._host)
        self._tables = {index: self._to_device(array) for index, array in found.items()}

    def sizes(self) -> list[int]:
        """Bytes of everything on the device, one number for each piece of memory."""
        tensors: dict[int, torch.Tensor] = {}
        for place in self._places.values():
            for part in (place.matrix.codes, place.matrix.scales):
                if part is not None:
                    tensors[id(part)] = part
        own = [array for value, array in self._plain.items() if value not in self._places]
        for array in (*own, *self._tables.values()):
            tensors[id(array)] = array
        return [tensor.numel() * tensor.element_size() for tensor in tensors.values()]

    def matrix(self, value: int, num_rows: int | None = None) -> Matrix:
        """A matrix; with ``num_rows`` so many rows from its first on, those below it included."""
        place = self._places[value]
        stop = place.stop if num_rows is None else place.start + num_rows
        whole = place.matrix
        if (place.start, stop) == (0, whole.shape[0]):
            return whole
        rows = slice(place.start, stop)
        scales = None if whole.scales is None else whole.scales[rows]
        return Matrix(whole.format, (stop - place.start, whole.shape[1]), whole.codes[rows], scales)

    def plain(self, value: int) -> torch.Tensor:
        """An array that is no matrix, or a matrix of plain numbers as an array."""
        if value not in self._plain:
            if value in self._places:
                place = self._places[value]
                assert place.matrix.is_plain, "an op reads a packed matrix as an array"
                part = place.matrix.codes[place.start : place.stop]
                self._plain[value] = part.reshape(self._program.values[value].shape)
            else:
                self._plain[value] = self._to_device(self._host(value))
        return self._plain[value]

    def bias(self, values: Sequence[int | None], sizes: Sequence[int]) -> torch.Tensor | None:
        """Biases one after the other, zeros for those that are not there."""
        if all(value is None for value in values):
            return None
        parts = [
            torch.zeros(size, device=self._device) if value is None else self.plain(value).float()
            for value, size in zip(values, sizes, strict=True)
        ]
        return torch.cat(parts)

    def table(self, value: int) -> torch.Tensor:
        """What a value that follows from positions is at each of them."""
        return self._tables[value]

    def _matrix_values(self) -> list[int]:
        found = [
            op.inputs[slot]
            for op in self._program.ops
            for slot in _MATRIX_INPUTS.get(op.kind, ())
            if self._program.values[op.inputs[slot]].dtype in MATRICES
        ]
        return list(dict.fromkeys(found))

    def _load_matrix(self, values: Sequence[int], stager: Stager) -> None:
        """Weights of one format and width, one below the other."""
        form = self._program.values[values[0]].dtype
        shapes = [_as_matrix(self._program, value) for value in values]
        rows, columns = sum(shape[0] for shape in shapes), shapes[0][1]
        matrix = self._allocate(form, (rows, columns))
        start = 0
        for value, shape in zip(values, shapes, strict=True):
            place = _Place(matrix, start, start + shape[0])
            self._places[value] = place
            self._fill(self._program.values[value].name, place, stager)
            start = place.stop

    def _allocate(self, form: str, shape: tuple[int, int]) -> Matrix:
        make, scales = torch.empty, None
        if form in PLAIN:
            codes = make(shape, dtype=PLAIN[form], device=self._device)
        elif form == "fp8":
            codes = make(shape, dtype=torch.float8_e4m3fn, device=self._device)
            scales = make(shape[0], dtype=torch.float32, device=self._device)
        elif form in layout.FORMATS:
            codes = make(layout.codes_shape(form, shape), dtype=torch.uint8, device=self._device)
            kind = _SCALE_DTYPES[layout.scales_dtype(form)]
            scales = make(layout.scales_shape(form, shape), dtype=kind, device=self._device)
        else:
            raise ContainerError(f"the target cuda has no matrices in {form}", "compile again")
        return Matrix(form, shape, codes, scales)

    def _fill(self, name: str, place: _Place, stager: Stager) -> None:
        if self._device.type == "meta":
            return
        matrix, rows = place.matrix, slice(place.start, place.stop)
        codes = matrix.codes[rows]
        scales = None if matrix.scales is None else matrix.scales[rows]
        if name in self._opened.drawn:
            draw(name, matrix.format, codes, scales)
            return
        self._stage(name, codes, stager)
        if scales is not None:
            self._stage(name + SCALES, scales, stager)

    def _stage(self, name: str, target: torch.Tensor, stager: Stager) -> None:
        path, start, stop = self._container.weight_place(name)
        expected = target.numel() * target.element_size()
        if stop - start != expected:
            raise ContainerError(
                f"weight {name!r} has {stop - start} bytes in the file, but {expected} in the"
                " program",
                "compile again",
            )
        stager.fill(target, (path, start, stop))

    def _host(self, value: int) -> np.ndarray:
        """A weight's values on the host."""
        known = self._program.values[value]
        if known.dtype in layout.FORMATS:
            stored = self._container.weight(known.name)
            scales = self._container.weight(known.name + SCALES)
            columns = _as_matrix(self._program, value)[1]
            rows = layout.unpack_rows(known.dtype, stored, scales, columns)
            return rows.reshape(known.shape)
        array = self._container.weight(known.name)
        if array.shape != tuple(known.shape):
            raise ContainerError(
                f"weight {known.name!r} is {array.shape} in the file, but {known.shape} in the"
                " program",
                "compile again",
            )
        return array

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        if array.dtype.kind not in "fiub":  # bfloat16, which torch cannot take from numpy
            array = array.astype(np.float32)
        return torch.from_numpy(np.array(array)).to(self._device)


def _as_matrix(program: Program, value: int) -> tuple[int, int]:
    """Rows and columns: a stack's matrices lie one below the other, a table's axes side by side."""
    shape = tuple(program.values[value].shape)
    is_stack = any(op.kind == "moe" and value in op.inputs[3:5] for op in program.ops)
    if is_stack:
        return shape[0] * shape[1], shape[2]
    return shape[0], math.prod(shape[1:])
