"""Reads and checks the header of a safetensors file, and maps tensors out of it.

The file begins with the header's length (8 bytes, little endian) and the header (JSON); the
tensors' bytes follow without gaps. Everything is checked against the file's size before any of it
is believed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qeff.core.errors import SourceError
from qeff.core.formats import FORMATS
from qeff.core.tensor import FileRange
from qeff.sources.mapped import map_bytes, map_values

MAX_HEADER_BYTES = 100_000_000
_MAX_AXIS = 1 << 63

_FORMAT_OF = {
    "F64": "f64",
    "F32": "f32",
    "F16": "f16",
    "BF16": "bf16",
    "F8_E4M3": "f8_e4m3",
    "F8_E5M2": "f8_e5m2",
    "I64": "i64",
    "I32": "i32",
    "I16": "i16",
    "I8": "i8",
    "U64": "u64",
    "U32": "u32",
    "U16": "u16",
    "U8": "u8",
    "BOOL": "bool",
}

_HINT = "the file is damaged or cut short; download it again"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor whose values lie in a file as they are."""

    name: str
    shape: tuple[int, ...]
    format: str
    location: FileRange

    def read(self) -> np.ndarray:
        """The values, mapped from the file in their stored dtype."""
        dtype = FORMATS[self.format].dtype
        assert dtype is not None, f"{self.name} has the packed format {self.format}"
        return map_values(self.location, dtype, self.shape)

    def raw(self) -> np.ndarray:
        """The stored bytes as uint8 [rows, bytes per row]."""
        num_rows = math.prod(self.shape[:-1])
        num_cols = self.location.length // num_rows if num_rows else 0
        return map_bytes(self.location).reshape(num_rows, num_cols)  # [rows, bytes per row]


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Every tensor of a safetensors file, by name, with nothing but the header read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            prefix = file.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or length > MAX_HEADER_BYTES or 8 + length > size:
                raise SourceError(f"{path} is not a whole safetensors file", _HINT)
            data = file.read(length)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}", _HINT) from error
    tensors = [
        _parse_entry(path, name, entry, data_start=8 + length)
        for name, entry in _parse_json(path, data).items()
        if name != "__metadata__"
    ]
    _check_layout(path, tensors, 8 + length, size)
    return {tensor.name: tensor for tensor in tensors}


def _parse_json(path: Path, data: bytes) -> dict[str, Any]:
    try:
        header = json.loads(data.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        raise SourceError(f"{path} has a header that is not valid JSON", _HINT) from None
    if not isinstance(header, dict):
        raise SourceError(f"{path} has a header that is not a JSON object", _HINT)
    return header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key appears twice")
    return found


def _parse_entry(path: Path, name: str, entry: Any, data_start: int) -> StoredTensor:
    def damaged(what: str) -> SourceError:
        return SourceError(f"tensor {name} of {path} {what}", _HINT)

    if not isinstance(entry, Mapping):
        raise damaged("has no description")
    dtype: Any = entry.get("dtype")
    shape: Any = entry.get("shape")
    span: Any = entry.get("data_offsets")
    if not isinstance(dtype, str):
        raise damaged("has no dtype")
    if dtype not in _FORMAT_OF:
        raise SourceError(
            f"tensor {name} of {path} has the dtype {dtype}, which cannot be read",
            f"save the checkpoint with one of: {', '.join(_FORMAT_OF)}",
        )
    if not _is_count_list(shape):
        raise damaged("has a bad shape")
    if not _is_count_list(span) or len(span) != 2 or span[0] > span[1]:
        raise damaged("has bad data_offsets")
    form = FORMATS[_FORMAT_OF[dtype]]
    length = span[1] - span[0]
    if form.num_bytes(math.prod(shape)) != length:
        raise damaged(f"takes {length} bytes, which is not what {dtype} {shape} takes")
    place = FileRange(path, data_start + span[0], length)
    return StoredTensor(name, tuple(shape), form.name, place)


def _is_count_list(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, int) and not isinstance(item, bool) and 0 <= item < _MAX_AXIS
        for item in value
    )


def _check_layout(path: Path, tensors: list[StoredTensor], start: int, size: int) -> None:
    """Tensors must follow each other without gaps and overlaps and fill the file."""
    end = start
    places = ((tensor.location.offset, tensor.location.length) for tensor in tensors)
    for offset, length in sorted(places):
        if offset != end:
            raise SourceError(f"{path} has tensors that overlap or leave gaps", _HINT)
        end = offset + length
    if end > size:
        raise SourceError(
            f"{path} is cut short: it has {size} bytes and its header asks for {end}", _HINT
        )
    if end < size:
        raise SourceError(f"{path} has {size - end} bytes that belong to no tensor", _HINT)
