"""Reads and checks the header of a GGUF file: metadata, and where each tensor lies.

A header may lie about any count, length or offset. Each is checked against the file's size, and
against what a real model can have, before it is believed; only then is the file shown to libraries
that believe it. Arrays (vocabularies, merges) are walked over and counted, not kept.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from qeff.core.errors import SourceError
from qeff.core.formats import FORMATS
from qeff.core.tensor import FileRange

# Type numbers of the GGUF file format.
FORMAT_OF_TYPE = {
    0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0",
    10: "q2_k", 11: "q3_k", 12: "q4_k", 13: "q5_k", 14: "q6_k",
    16: "iq2_xxs", 17: "iq2_xs", 18: "iq3_xxs", 19: "iq1_s", 20: "iq4_nl", 21: "iq3_s",
    22: "iq2_s", 23: "iq4_xs", 24: "i8", 25: "i16", 26: "i32", 27: "i64", 28: "f64",
    29: "iq1_m", 30: "bf16", 34: "tq1_0", 35: "tq2_0", 39: "mxfp4",
}  # fmt: skip
_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?",
    10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9

# Far above any real model, far below what could exhaust a machine.
_MAX_FIELDS = 100_000
_MAX_TENSORS = 1_000_000
_MAX_ARRAY_LEN = 8_000_000
_MAX_STRING_BYTES = 64_000_000
_MAX_AXES = 4

_HINT = "the file is damaged or cut short; download it again"

Scalar = int | float | bool | str


@dataclass(frozen=True, slots=True)
class GgufTensorInfo:
    """One stored tensor: its GGUF name, its shape with rows first, and where its bytes are."""

    name: str
    shape: tuple[int, ...]
    format: str
    place: FileRange


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a GGUF file says about itself."""

    path: Path
    fields: Mapping[str, Scalar]
    array_lens: Mapping[str, int]
    places: Mapping[str, tuple[int, int]]  # first byte and end of each field, key included
    tensors: Mapping[str, GgufTensorInfo]

    @property
    def architecture(self) -> str:
        """The architecture by its GGUF name, such as ``llama``."""
        return str(self.fields["general.architecture"])

    def whole_number(self, key: str) -> int | None:
        """A metadata value that is a whole number; None when it is missing or something else."""
        value = self.fields.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


def read_gguf_header(path: Path) -> GgufHeader:
    """The header of a GGUF file, checked as a whole."""
    try:
        with path.open("rb") as file:
            if file.seek(0, 2) < 24:
                raise SourceError(f"{path} is not a GGUF file", _HINT)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Walk(path, data).read()
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}", _HINT) from error


class _Walk:
    """A position that moves through the bytes of a header and never past their end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.size = len(data)
        self.at = 0
        self.fields: dict[str, Scalar] = {}
        self.array_lens: dict[str, int] = {}
        self.places: dict[str, tuple[int, int]] = {}

    def read(self) -> GgufHeader:
        if self.data[:4] != b"GGUF":
            raise SourceError(f"{self.path} is not a GGUF file", _HINT)
        self.at = 4
        version = self.number("<I")
        if version not in (2, 3):
            raise SourceError(
                f"{self.path} has GGUF version {version}, and versions 2 and 3 can be read",
                "convert the model again with a current converter; big-endian files are not read",
            )
        num_tensors = self.count("tensors", _MAX_TENSORS, least_bytes=24)
        num_fields = self.count("metadata fields", _MAX_FIELDS, least_bytes=13)
        for _ in range(num_fields):
            self.field()
        self.check_fields()
        infos = [self.tensor_info() for _ in range(num_tensors)]
        tensors = self.place_tensors(infos)
        return GgufHeader(self.path, self.fields, self.array_lens, self.places, tensors)

    def damaged(self, what: str) -> SourceError:
        return SourceError(f"{self.path} {what}", _HINT)

    def number(self, kind: str) -> int:
        """One number of a struct kind; floats and booleans pass through as they are."""
        end = self.at + struct.calcsize(kind)
        if end > self.size:
            raise self.damaged("is cut short within its header")
        value: int = struct.unpack_from(kind, self.data, self.at)[0]
        self.at = end
        return value

    def count(self, what: str, most: int, least_bytes: int) -> int:
        """How many things follow; each takes at least some bytes of the file."""
        value = self.number("<Q")
        if value > most or value * least_bytes > self.size - self.at:
            raise self.damaged(f"claims {value} {what}, which it cannot hold")
        return value

    def text(self) -> str:
        length = self.count("bytes of text", _MAX_STRING_BYTES, least_bytes=1)
        raw = self.data[self.at : self.at + length]
        self.at += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.damaged("has text in its header that is not UTF-8") from None

    def field(self) -> None:
        start = self.at
        key = self.text()
        if key in self.places:
            raise self.damaged(f"has the metadata field {key!r} twice")
        kind = self.number("<I")
        if kind in _SCALARS:
            self.fields[key] = self.number(_SCALARS[kind])
        elif kind == _STRING:
            self.fields[key] = self.text()
        elif kind == _ARRAY:
            self.array_lens[key] = self.skip_array(key)
        else:
            raise self.damaged(f"has the metadata field {key!r} of the unknown type {kind}")
        self.places[key] = (start, self.at)

    def skip_array(self, key: str) -> int:
        kind = self.number("<I")
        if kind in _SCALARS:
            item_bytes = struct.calcsize(_SCALARS[kind])
            length = self.count(f"values in {key!r}", _MAX_ARRAY_LEN, item_bytes)
            self.at += length * item_bytes
            return length
        if kind != _STRING:
            raise self.damaged(f"has the metadata array {key!r} of the unreadable type {kind}")
        length = self.count(f"texts in {key!r}", _MAX_ARRAY_LEN, least_bytes=8)
        for _ in range(length):
            num_bytes = self.count("bytes of text", _MAX_STRING_BYTES, least_bytes=1)
            self.at += num_bytes
        return length

    def check_fields(self) -> None:
        """What later steps and libraries take for granted."""
        name = self.fields.get("general.architecture")
        if not isinstance(name, str) or not name:
            raise SourceError(
                f"{self.path} does not say which architecture the model has",
                "convert the model again; general.architecture must be set",
            )
        num_parts = self.fields.get("split.count", 0)
        if isinstance(num_parts, int) and num_parts > 1:
            raise SourceError(
                f"{self.path} is one of {num_parts} parts of a model",
                "merge the parts into one file with: llama-gguf-split --merge",
            )

    def tensor_info(self) -> tuple[str, tuple[int, ...], str, int]:
        name = self.text()
        num_axes = self.number("<I")
        if not 1 <= num_axes <= _MAX_AXES:
            raise self.damaged(f"has the tensor {name!r} with {num_axes} axes")
        axes = [self.number("<Q") for _ in range(num_axes)]
        kind = self.number("<I")
        if kind not in FORMAT_OF_TYPE:
            raise SourceError(
                f"{self.path} has the tensor {name!r} in the unknown format number {kind}",
                "quantise the model to a format that is read, such as Q4_K_M or Q8_0",
            )
        return name, tuple(reversed(axes)), FORMAT_OF_TYPE[kind], self.number("<Q")

    def place_tensors(
        self, infos: list[tuple[str, tuple[int, ...], str, int]]
    ) -> dict[str, GgufTensorInfo]:
        alignment = self.fields.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self.damaged(f"has the alignment {alignment}, which is no power of two")
        start = -(-self.at // alignment) * alignment
        tensors: dict[str, GgufTensorInfo] = {}
        for name, shape, form, offset in infos:
            if name in tensors:
                raise self.damaged(f"has the tensor {name!r} twice")
            length = self.num_bytes(name, shape, form)
            if offset % alignment or start + offset + length > self.size:
                raise self.damaged(f"is cut short: the tensor {name!r} is not within the file")
            tensors[name] = GgufTensorInfo(
                name, shape, form, FileRange(self.path, start + offset, length)
            )
        self.check_overlap(tensors)
        return tensors

    def num_bytes(self, name: str, shape: tuple[int, ...], form: str) -> int:
        block = FORMATS[form]
        if 0 in shape or shape[-1] % block.block_len:
            raise self.damaged(f"has the tensor {name!r} with rows that are no whole blocks")
        return block.num_bytes(math.prod(shape))

    def check_overlap(self, tensors: Mapping[str, GgufTensorInfo]) -> None:
        end = 0
        for info in sorted(tensors.values(), key=lambda info: info.place.offset):
            if info.place.offset < end:
                raise self.damaged(f"has the tensor {info.name!r} overlapping another one")
            end = info.place.offset + info.place.length
