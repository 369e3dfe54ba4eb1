"""Checkpoint tensors as initialisers: bytes stay where they are, and are read when asked for.

Knows LazyTensor on one side and onnx_ir's tensor protocol on the other; nothing about nodes.
"""

from __future__ import annotations

import math
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from qeff.core.tensor import LazyTensor

PACKED_DATA = "packed"  # stands for the file of floats that only a standalone ONNX has

_DTYPES = {
    "f64": ir.DataType.DOUBLE,
    "f32": ir.DataType.FLOAT,
    "f16": ir.DataType.FLOAT16,
    "bf16": ir.DataType.BFLOAT16,
    "f8_e4m3": ir.DataType.FLOAT8E4M3FN,
    "f8_e5m2": ir.DataType.FLOAT8E5M2,
    "i64": ir.DataType.INT64,
    "i32": ir.DataType.INT32,
    "i16": ir.DataType.INT16,
    "i8": ir.DataType.INT8,
    "u8": ir.DataType.UINT8,
    "u16": ir.DataType.UINT16,
    "u32": ir.DataType.UINT32,
    "u64": ir.DataType.UINT64,
    "bool": ir.DataType.BOOL,
}


def graph_dtype(tensor: LazyTensor) -> ir.DataType:
    """The dtype that a graph sees: the stored one, or float32 for packed blocks."""
    return _DTYPES.get(tensor.format, ir.DataType.FLOAT)


class CheckpointTensor:
    """An initialiser whose values lie in the checkpoint; follows onnx_ir's TensorProtocol."""

    doc_string: str | None = None

    def __init__(self, lazy: LazyTensor) -> None:
        self.lazy = lazy
        self.raw: Any = lazy
        self.name: str | None = lazy.name
        self.dtype: ir.DataType = graph_dtype(lazy)
        self.shape: Any = ir.Shape(lazy.shape)
        self.metadata_props: MutableMapping[str, str] = {}
        self.meta: MutableMapping[str, Any] = {}

    @property
    def size(self) -> int:
        return math.prod(self.lazy.shape)

    @property
    def nbytes(self) -> int:
        return math.ceil(self.dtype.itemsize * self.size)

    def numpy(self) -> np.ndarray:
        """The values; packed ones become floats here and are not kept."""
        return self.lazy.read()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        values = self.numpy()
        return values if dtype is None else values.astype(dtype)

    def __dlpack__(self, *, stream: Any = None) -> Any:
        return self.numpy().__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.numpy().__dlpack_device__()

    def tobytes(self) -> bytes:
        """The values as little-endian bytes."""
        return np.ascontiguousarray(self.numpy()).tobytes()

    def __repr__(self) -> str:
        return f"CheckpointTensor({self.name}, {self.lazy.format}, {list(self.lazy.shape)})"

    def external(self, base: Path | str = "") -> ir.ExternalTensor:
        """The same as a reference: into its file, or to the file that only materialising writes."""
        place = self.lazy.location
        shape = ir.Shape(self.lazy.shape)
        data: tuple[str, int | None, int | None] = (PACKED_DATA, None, None)
        if place is not None:
            data = (place.path.name, place.offset, place.length)
        return ir.ExternalTensor(
            *data, dtype=self.dtype, shape=shape, name=self.lazy.name, base_dir=base
        )
