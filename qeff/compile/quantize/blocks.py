"""Round to nearest in blocks of 32 along a row: 4 or 8 bits a value, a float32 scale a block.

The bytes are those of ONNX Runtime's MatMulNBits: unsigned values around 8 or 128, two 4-bit
values to a byte with the first in the low half. Values of the OCP MX formats are small integers
times a power of two (E2M3 times 8, E2M1 times 2), so 8 bits hold them exactly. Works on a few rows
at a time, so that memory stays far below that of the tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BLOCK_LEN = 32
_CHUNK_VALUES = 1 << 20


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """A number format of blocks: the bits a value is stored in, and its grid if it is an MX one."""

    name: str
    bits: int
    unit: int = 0  # an MX element times this is an integer; 0: not an MX format
    largest: int = 0  # the largest such integer
    fine: int = 0  # integers below this are all there; from each doubling on, every other one


FORMATS = {
    item.name: item
    for item in (
        BlockFormat("int8", 8),
        BlockFormat("int4", 4),
        BlockFormat("mxfp6", 8, unit=8, largest=60, fine=16),  # E2M3: 0, 1/8 … 7.5
        BlockFormat("mxfp4", 8, unit=2, largest=12, fine=4),  # E2M1: 0, 1/2 … 6
    )
}
_MX_MAX_EXPONENT = 2  # of both E2M3 and E2M1


@dataclass(frozen=True, slots=True)
class Packed:
    """A matrix [rows, cols] in blocks, and how far it is from the original."""

    data: np.ndarray  # uint8 [rows, blocks, bytes per block]
    scales: np.ndarray  # float32 [rows, blocks]
    error: float  # sum of squared differences
    energy: float  # sum of squared originals


def packed_shapes(rows: int, cols: int, bits: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of ``Packed.data`` and ``Packed.scales``."""
    num_blocks = -(-cols // BLOCK_LEN)
    return (rows, num_blocks, BLOCK_LEN * bits // 8), (rows, num_blocks)


def pack(matrix: np.ndarray, form: BlockFormat) -> Packed:
    """Quantise a float matrix row by row; a last block that is not full is filled with zeros."""
    bits = form.bits
    rows, cols = matrix.shape
    data_shape, scale_shape = packed_shapes(rows, cols, bits)
    data, scales = np.empty(data_shape, np.uint8), np.empty(scale_shape, np.float32)
    error = energy = 0.0
    step = max(1, _CHUNK_VALUES // max(1, cols))
    for start in range(0, rows, step):
        part = np.asarray(matrix[start : start + step], np.float32)
        padded = np.zeros((len(part), data_shape[1] * BLOCK_LEN), np.float32)
        padded[:, :cols] = part
        blocks = padded.reshape(len(part), data_shape[1], BLOCK_LEN)
        scale = _mx_scales(blocks, form) if form.unit else _scales(blocks, bits)
        levels = _mx_levels(blocks, scale, form) if form.unit else _levels(blocks, scale, bits)
        restored = (levels.astype(np.float32) - (1 << bits - 1)) * scale[..., None]
        error += float(np.square(restored - blocks, dtype=np.float64).sum())
        energy += float(np.square(blocks, dtype=np.float64).sum())
        scales[start : start + step] = scale
        data[start : start + step] = (
            levels if bits == 8 else levels[..., ::2] | levels[..., 1::2] << 4
        )
    return Packed(data, scales, error, energy)


def unpack(data: np.ndarray, scales: np.ndarray, cols: int) -> np.ndarray:
    """The floats [rows, cols] that packed values stand for."""
    rows, num_blocks, num_bytes = data.shape
    bits = 8 * num_bytes // BLOCK_LEN
    if bits == 4:
        data = np.stack([data & 15, data >> 4], axis=-1).reshape(rows, num_blocks, BLOCK_LEN)
    values: np.ndarray = (data.astype(np.float32) - (1 << bits - 1)) * scales[..., None]
    return values.reshape(rows, num_blocks * BLOCK_LEN)[:, :cols]


def _scales(blocks: np.ndarray, bits: int) -> np.ndarray:
    """One scale per block; 4 bits reach further down than up, so the largest value points down."""
    low, high = blocks.min(-1), blocks.max(-1)
    if bits == 8:
        return np.asarray(np.maximum(-low, high) / 127, np.float32)
    extreme = np.where(-low > high, low, high)
    return np.asarray(extreme / -8, np.float32)


def _levels(blocks: np.ndarray, scale: np.ndarray, bits: int) -> np.ndarray:
    inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale != 0)
    middle = 1 << bits - 1
    levels = np.rint(blocks * inverse[..., None]) + middle
    return np.asarray(np.clip(levels, 0, 2 * middle - 1), np.uint8)


def _mx_scales(blocks: np.ndarray, form: BlockFormat) -> np.ndarray:
    """The OCP MX rule: a power of two by the exponent of the largest value, as one unit's worth."""
    exponent = np.frexp(np.abs(blocks).max(-1))[1] - 1  # floor(log2), and −1 for a block of zeros
    shared = np.clip(exponent - _MX_MAX_EXPONENT, -127, 127)
    return np.asarray(np.ldexp(np.float32(1 / form.unit), shared), np.float32)


def _mx_levels(blocks: np.ndarray, scale: np.ndarray, form: BlockFormat) -> np.ndarray:
    """Nearest element, ties to the even mantissa, saturating; shifted to be unsigned."""
    units = blocks / scale[..., None]
    magnitude = np.abs(units)
    step = np.where(magnitude < form.fine, 1, np.where(magnitude < 2 * form.fine, 2, 4))
    nearest = np.clip(np.rint(units / step) * step, -form.largest, form.largest)
    return np.asarray(nearest + 128, np.uint8)
