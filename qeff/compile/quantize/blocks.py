"""Round to nearest in blocks of 32 along a row: 4 or 8 bits a value, a float32 scale a block.

The bytes are those of ONNX Runtime's MatMulNBits: unsigned values around 8 or 128, two 4-bit
values to a byte with the first in the low half. Values of the OCP MX formats are small integers
times a power of two (E2M3 times 8, E2M1 times 2), so 8 bits hold them exactly. Works on a few rows
at a time, so that memory stays far below that of the tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qeff.compile.quantize.mx import E2M1, E2M3, Element, element_values, power_of_two, quantise_mx

BLOCK_LEN = 32
_CHUNK_VALUES = 1 << 20


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """A number format of blocks: the bits a value is stored in, and its element if it is MX."""

    name: str
    bits: int
    element: Element | None = None


FORMATS = {
    item.name: item
    for item in (
        BlockFormat("int8", 8),
        BlockFormat("int4", 4),
        BlockFormat("mxfp6", 8, E2M3),
        BlockFormat("mxfp4", 8, E2M1),
    )
}


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
        scale, levels = _quantise(blocks, form)
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


def _quantise(blocks: np.ndarray, form: BlockFormat) -> tuple[np.ndarray, np.ndarray]:
    """Scales and unsigned levels."""
    if form.element is None:
        scale = scales_of(blocks, form.bits)
        return scale, levels_of(blocks, scale, form.bits)
    exponents, codes = quantise_mx(blocks, form.element)
    wholes = element_values(form.element) * form.element.unit + 128
    scale = power_of_two(exponents) / np.float32(form.element.unit)
    return scale, wholes.astype(np.uint8)[codes]


def scales_of(blocks: np.ndarray, bits: int) -> np.ndarray:
    """One scale per block; 4 bits reach further down than up, so the largest value points down."""
    low, high = blocks.min(-1), blocks.max(-1)
    if bits == 8:
        return np.asarray(np.maximum(-low, high) / 127, np.float32)
    extreme = np.where(-low > high, low, high)
    return np.asarray(extreme / -8, np.float32)


def levels_of(blocks: np.ndarray, scale: np.ndarray, bits: int) -> np.ndarray:
    """The nearest level of each value, from 0, with zero in the middle."""
    inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale != 0)
    middle = 1 << bits - 1
    levels = np.rint(blocks * inverse[..., None]) + middle
    return np.asarray(np.clip(levels, 0, 2 * middle - 1), np.uint8)
