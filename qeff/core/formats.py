"""Element and block formats by name: the bits a value takes, and its plain dtype, if it has one.

A *plain* format is an array of numpy (or ml_dtypes) elements. A *block* format packs
``block_len`` neighbouring values of a row into ``block_bytes`` bytes with scales of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np


@dataclass(frozen=True, slots=True)
class Format:
    """One way to store numbers."""

    name: str
    block_len: int
    block_bytes: int
    dtype: np.dtype | None = None  # numpy element type of a plain format

    @property
    def is_plain(self) -> bool:
        return self.dtype is not None

    @property
    def bits(self) -> float:
        """Bits per value, scales included."""
        return 8 * self.block_bytes / self.block_len

    def num_bytes(self, num_values: int) -> int:
        """Bytes that this many values take; the count must be whole blocks."""
        assert num_values % self.block_len == 0, (
            f"{num_values} values are not whole blocks of {self.name}"
        )
        return num_values // self.block_len * self.block_bytes


def _plain(name: str, dtype: object) -> Format:
    kind = np.dtype(dtype)  # type: ignore[call-overload]
    return Format(name, 1, kind.itemsize, kind)


_ALL = (
    _plain("f64", np.float64),
    _plain("f32", np.float32),
    _plain("f16", np.float16),
    _plain("bf16", ml_dtypes.bfloat16),
    _plain("f8_e4m3", ml_dtypes.float8_e4m3fn),
    _plain("f8_e5m2", ml_dtypes.float8_e5m2),
    _plain("i64", np.int64),
    _plain("i32", np.int32),
    _plain("i16", np.int16),
    _plain("i8", np.int8),
    _plain("u8", np.uint8),
    _plain("u16", np.uint16),
    _plain("u32", np.uint32),
    _plain("u64", np.uint64),
    _plain("bool", np.bool_),
    # GGUF block formats, sizes as in the ggml file format.
    Format("q4_0", 32, 18),
    Format("q4_1", 32, 20),
    Format("q5_0", 32, 22),
    Format("q5_1", 32, 24),
    Format("q8_0", 32, 34),
    Format("q2_k", 256, 84),
    Format("q3_k", 256, 110),
    Format("q4_k", 256, 144),
    Format("q5_k", 256, 176),
    Format("q6_k", 256, 210),
    Format("iq2_xxs", 256, 66),
    Format("iq2_xs", 256, 74),
    Format("iq2_s", 256, 82),
    Format("iq3_xxs", 256, 98),
    Format("iq3_s", 256, 110),
    Format("iq1_s", 256, 50),
    Format("iq1_m", 256, 56),
    Format("iq4_nl", 32, 18),
    Format("iq4_xs", 256, 136),
    Format("tq1_0", 256, 54),
    Format("tq2_0", 256, 66),
    # OCP MX formats: elements, and a scale of one byte for each block.
    Format("mxfp4", 32, 17),
    Format("mxfp6", 32, 25),
    Format("mxfp8", 32, 33),
)

FORMATS = {item.name: item for item in _ALL}


def format_of(dtype: np.dtype) -> Format:
    """The plain format of a numpy dtype."""
    for item in _ALL:
        if item.dtype == dtype:
            return item
    raise KeyError(f"no format for numpy dtype {dtype}")
