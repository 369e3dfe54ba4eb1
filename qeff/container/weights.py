"""The weights file: safetensors, each tensor at a multiple of 64 bytes, header before data.

Shapes and formats are known before any value is, so the header is written first and the values are
streamed, at most one tensor in memory at a time. Knows nothing of what the tensors mean. Packed
layouts are stored as ``u8``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qeff.container.format import ALIGNMENT, HINT, MAX_HEADER_BYTES
from qeff.core.errors import ContainerError
from qeff.core.formats import FORMATS

PADDING = "_pad."  # names of the filler tensors that keep the others aligned
HEADER_LEN_BYTES = 8

# Our format names and safetensors' own.
_DTYPES = {
    "f64": "F64",
    "f32": "F32",
    "f16": "F16",
    "bf16": "BF16",
    "f8_e4m3": "F8_E4M3",
    "f8_e5m2": "F8_E5M2",
    "i64": "I64",
    "i32": "I32",
    "i16": "I16",
    "i8": "I8",
    "u8": "U8",
    "u16": "U16",
    "u32": "U32",
    "u64": "U64",
    "bool": "BOOL",
}
_FORMATS = {value: key for key, value in _DTYPES.items()}


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """A tensor to be written: what is known of it before its values are."""

    name: str
    shape: tuple[int, ...]
    format: str

    @property
    def dtype(self) -> np.dtype:
        dtype = FORMATS[self.format].dtype
        assert dtype is not None, f"{self.name}: {self.format} is packed; store its bytes as u8"
        return dtype

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class ArrayStream:
    """An array that is made while it is written: pieces that follow each other on axis 0."""

    shape: tuple[int, ...]
    dtype: np.dtype
    pieces: Iterator[np.ndarray]


@dataclass(frozen=True, slots=True)
class WeightGroup:
    """Tensors that one computation makes together, such as packed values and their scales."""

    specs: tuple[WeightSpec, ...]
    produce: Callable[[], Sequence[np.ndarray | ArrayStream]]


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a tensor's bytes lie, counted from the start of the file."""

    name: str
    shape: tuple[int, ...]
    format: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The header as it is written, and the place of every tensor."""

    header: bytes
    entries: tuple[Entry, ...]
    num_bytes: int


def lay_out(specs: Iterable[WeightSpec]) -> Layout:
    """Give every tensor its place, in the order given; fillers keep each one aligned."""
    table: dict[str, Any] = {"__metadata__": {"format": "qeff"}}
    placed: list[tuple[WeightSpec, int]] = []
    end = 0
    for spec in specs:
        assert spec.name not in table and not spec.name.startswith(PADDING), f"{spec.name} twice"
        gap = -end % ALIGNMENT
        if gap:
            table[f"{PADDING}{len(placed)}"] = _row("U8", (gap,), end, end + gap)
        start = end + gap
        end = start + spec.num_bytes
        table[spec.name] = _row(_DTYPES[spec.format], spec.shape, start, end)
        placed.append((spec, start))
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(HEADER_LEN_BYTES + len(text)) % ALIGNMENT)
    assert len(text) <= MAX_HEADER_BYTES, "the weights header is too large"
    base = HEADER_LEN_BYTES + len(text)
    entries = tuple(
        Entry(spec.name, spec.shape, spec.format, base + start, base + start + spec.num_bytes)
        for spec, start in placed
    )
    return Layout(len(text).to_bytes(HEADER_LEN_BYTES, "little") + text, entries, base + end)


def _row(dtype: str, shape: tuple[int, ...], start: int, stop: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}


def header_len(prefix: bytes, file_bytes: int, where: str) -> int:
    """The header's length from the first eight bytes, checked against the file's size."""
    if len(prefix) < HEADER_LEN_BYTES:
        raise ContainerError(f"{where} is too short to be a weights file", HINT)
    length = int.from_bytes(prefix[:HEADER_LEN_BYTES], "little")
    if length > min(MAX_HEADER_BYTES, file_bytes - HEADER_LEN_BYTES):
        raise ContainerError(
            f"{where} claims a header of {length} bytes in a file of {file_bytes}", HINT
        )
    return length


def parse_header(text: bytes, file_bytes: int, where: str) -> dict[str, Entry]:
    """Read the header: every tensor inside the file, apart from the others, without a gap."""
    try:
        table = json.loads(text)
        entries = [
            _entry(str(name), row, HEADER_LEN_BYTES + len(text))
            for name, row in table.items()
            if name != "__metadata__"
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ContainerError(f"{where} has a malformed header: {error}", HINT) from error
    end = HEADER_LEN_BYTES + len(text)
    for entry in sorted(entries, key=lambda item: (item.start, item.stop)):
        if entry.start != end or entry.stop < entry.start:
            raise ContainerError(f"{where}: tensor {entry.name!r} overlaps or leaves a gap", HINT)
        end = entry.stop
        if entry.start % ALIGNMENT and not entry.name.startswith(PADDING):
            raise ContainerError(f"{where}: tensor {entry.name!r} is not aligned", HINT)
    if end != file_bytes:
        raise ContainerError(f"{where}: tensors end at {end}, the file at {file_bytes}", HINT)
    return {item.name: item for item in entries if not item.name.startswith(PADDING)}


def _entry(name: str, row: Any, base: int) -> Entry:
    shape, (start, stop) = row["shape"], row["data_offsets"]
    if not all(type(size) is int and size >= 0 for size in (*shape, start, stop)):
        raise ValueError(f"tensor {name!r} has sizes that are no whole numbers")
    spec = WeightSpec(name, tuple(shape), _FORMATS[row["dtype"]])
    if stop - start != spec.num_bytes:
        raise ValueError(
            f"tensor {name!r} has {stop - start} bytes, its shape asks {spec.num_bytes}"
        )
    return Entry(name, spec.shape, spec.format, base + start, base + stop)
