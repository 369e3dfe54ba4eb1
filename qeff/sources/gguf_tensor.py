"""Tensors of a GGUF file under their Hugging Face names, unpacked only when asked.

A tensor whose rows are only moved keeps its stored format, and its blocks are moved with it. One
whose values change on the way (a norm stored as w + 1, a transposed matrix) is a plain f32 tensor
without a place in the file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from qeff.core.errors import SourceError
from qeff.core.formats import FORMATS
from qeff.core.tensor import FileRange
from qeff.sources.gguf_header import GgufTensorInfo
from qeff.sources.gguf_rows import Conversion
from qeff.sources.mapped import map_bytes


@dataclass(frozen=True, slots=True)
class RowsTensor:
    """Stored rows, in another order or not."""

    name: str
    shape: tuple[int, ...]
    format: str
    parts: tuple[GgufTensorInfo, ...]
    order: np.ndarray | None  # stored row of each row; None when nothing moves

    @property
    def location(self) -> FileRange | None:
        """Where the values are, when they are plain and unmoved."""
        is_one = self.order is None and len(self.parts) == 1
        if is_one and FORMATS[self.format].is_plain:
            return self.parts[0].place
        return None

    def read(self) -> np.ndarray:
        """The values: as stored for a plain format, float32 for a packed one."""
        return unpack(self.raw(), self.format).reshape(self.shape)

    def raw(self) -> np.ndarray:
        """The stored blocks as uint8 [rows, bytes per row]."""
        blocks = [_rows_of(part) for part in self.parts]
        stored = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
        if self.order is None:
            return stored
        if len(self.shape) == 1:
            # The rows that moved are single values here: [values, bytes per value].
            stored = stored.reshape(self.shape[0], -1)
            return np.take(stored, self.order, axis=0).reshape(1, -1)
        return np.take(stored, self.order, axis=0)

    def read_rows(self, start: int, stop: int) -> np.ndarray:
        """The values of some rows; see ``read``."""
        return unpack(self.raw_rows(start, stop), self.format)

    def raw_rows(self, start: int, stop: int) -> np.ndarray:
        """The stored blocks of some rows; see ``raw``."""
        if len(self.shape) == 1:
            return self.raw()[start:stop]
        if self.order is None and len(self.parts) == 1:
            return _rows_of(self.parts[0])[start:stop]
        wanted = np.arange(start, stop) if self.order is None else self.order[start:stop]
        ends = np.cumsum([math.prod(part.shape[:-1]) for part in self.parts])
        owners = np.searchsorted(ends, wanted, "right")  # the part that each row lies in
        pieces = np.empty((len(wanted), self.parts[0].place.length // ends[0]), np.uint8)
        for owner in np.unique(owners):
            mine = owners == owner
            first = ends[owner - 1] if owner else 0
            pieces[mine] = _rows_of(self.parts[owner])[wanted[mine] - first]
        return pieces


@dataclass(frozen=True, slots=True)
class ComputedTensor:
    """Values that differ from the stored ones."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[GgufTensorInfo, ...]
    conversion: Conversion

    format = "f32"
    location = None

    def read(self) -> np.ndarray:
        """The values in float32."""
        stored = [(part.name, values_of(part)) for part in self.parts]
        values = self.conversion.apply(stored)
        if values.shape != self.shape:
            raise SourceError(
                f"tensor {self.name} of {self.parts[0].place.path} has the shape {values.shape}, "
                f"and its config asks for {self.shape}",
                "the file's metadata and tensors do not belong together",
            )
        return np.ascontiguousarray(values, np.float32)

    def raw(self) -> np.ndarray:
        """The bytes of the float32 values, [rows, bytes per row]."""
        values = self.read()
        return values.view(np.uint8).reshape(math.prod(self.shape[:-1]), -1)


def unpack(blocks: np.ndarray, form: str) -> np.ndarray:
    """The values of stored rows [rows, bytes per row]: [rows, values per row]."""
    dtype = FORMATS[form].dtype
    if dtype is not None:
        # GGUF aligns tensors, but a file may ask for an alignment below the values' size.
        aligned = blocks if blocks.ctypes.data % dtype.alignment == 0 else np.array(blocks)
        return aligned.view(dtype)
    from gguf import GGMLQuantizationType, dequantize

    values: np.ndarray = dequantize(blocks, GGMLQuantizationType[form.upper()])
    return values


def _rows_of(part: GgufTensorInfo) -> np.ndarray:
    return map_bytes(part.place).reshape(math.prod(part.shape[:-1]), -1)  # [rows, bytes per row]


def values_of(part: GgufTensorInfo) -> np.ndarray:
    """The values of a stored tensor in float32."""
    return unpack(_rows_of(part), part.format).astype(np.float32, copy=False).reshape(part.shape)
