"""How packed matrices lie in GPU memory: codes in groups of 128 bytes a row, scales beside them.

A row is padded to whole groups: 256 columns (4 and 6 bits) or 128 (8 bits). A group is 32 words of
32 bits: words 2i and 2i + 1 hold columns 2i (lower halves) and 2i + 1 (upper halves) of each of its
blocks of 32 columns, the first word those of the first half of the blocks. So a lane that reads
8 bytes has two neighbouring columns of every block, and a few operations on a word make two bf16
numbers that belong side by side. The two bits that E2M3 has more follow all groups of the row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BLOCK_LEN = 32
_BIAS = 127
_FOUR_BITS = 4
# Where the bits sign, exponent, exponent, mantissa of the four E2M1 codes of a half word lie.
# Shifted left by 0, 3 and 6 the first three stand where bf16 wants them.
_E2M1_BITS = ((15, 8, 7, 6), (12, 5, 4, 3), (9, 2, 1, 0), (14, 13, 11, 10))
_EXTRA_STEP = 2  # bits from the sign of one block to that of the next in the words of E2M3


@dataclass(frozen=True, slots=True)
class PackedFormat:
    """A packed format: bits of a code, and the dtype of its scales."""

    name: str
    bits: int
    scale_dtype: np.dtype
    exponent_bits: int = 0  # of MX elements, which have three mantissa bits or one (mxfp4)
    mantissa_bits: int = 0

    @property
    def num_blocks(self) -> int:
        """Blocks of a group."""
        return 4 if self.bits == 8 else 8

    @property
    def group_len(self) -> int:
        """Columns of a group."""
        return self.num_blocks * BLOCK_LEN

    @property
    def group_bytes(self) -> int:
        """Bytes of a group's codes."""
        return self.group_len * self.bits // 8

    @property
    def is_mx(self) -> bool:
        """Whether scales are exponents of two."""
        return self.exponent_bits > 0


FORMATS = {
    item.name: item
    for item in (
        PackedFormat("q8_0", 8, np.dtype(np.float16)),
        PackedFormat("q4_0", 4, np.dtype(np.float16)),
        PackedFormat("mxfp8", 8, np.dtype(np.uint8), 4, 3),
        PackedFormat("mxfp6", 6, np.dtype(np.uint8), 2, 3),
        PackedFormat("mxfp4", 4, np.dtype(np.uint8), 2, 1),
    )
}


def num_groups(form: str, columns: int) -> int:
    """Groups of a row of this many columns."""
    return -(-columns // FORMATS[form].group_len)


def codes_shape(form: str, shape: tuple[int, int]) -> tuple[int, int]:
    """The shape of the bytes that hold a matrix [rows, columns]."""
    return shape[0], num_groups(form, shape[1]) * FORMATS[form].group_bytes


def scales_shape(form: str, shape: tuple[int, int]) -> tuple[int, int]:
    """The shape of the scales of a matrix [rows, columns]."""
    return shape[0], num_groups(form, shape[1]) * FORMATS[form].num_blocks


def scales_dtype(form: str) -> np.dtype:
    """f16, or u8 for exponents of two."""
    return FORMATS[form].scale_dtype


def pack_rows(form: str, codes: np.ndarray, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bytes and scales as they lie in memory, of codes [rows, columns] and scales of their blocks.

    Codes are bytes: signed ones for q8_0, 0 to 15 for q4_0, those of the specification for MX.
    """
    known = FORMATS[form]
    num_rows, columns = codes.shape
    assert scales.shape == (num_rows, -(-columns // BLOCK_LEN)), "one scale for a block of 32"
    assert scales.dtype == known.scale_dtype, f"scales of {form} are {known.scale_dtype}"
    groups = num_groups(form, columns)
    filler = 8 if form == "q4_0" else 0
    padded = np.full((num_rows, groups * known.group_len), filler, np.uint8)
    padded[:, :columns] = codes.view(np.uint8)
    # [rows, groups, word of the pair, block in the word, column pair, column of the pair]
    blocks = padded.reshape(num_rows, groups, 2, known.num_blocks // 2, 16, 2)
    if known.bits == 8:
        halves = blocks[:, :, :, 0] | blocks[:, :, :, 1].astype(np.uint16) << 8
    else:
        halves = _join_four(blocks, form)
    words = np.ascontiguousarray(halves.transpose(0, 1, 3, 2, 4)).astype("<u2")
    stored = words.view(np.uint8).reshape(num_rows, -1)
    if form == "mxfp6":
        extra = _join_extra(padded.reshape(num_rows, groups, 8, 16, 2))
        stored = np.concatenate([stored, extra.view(np.uint8).reshape(num_rows, -1)], axis=1)
    wide = np.zeros((num_rows, groups * known.num_blocks), known.scale_dtype)
    wide[:, : scales.shape[1]] = scales
    return stored, wide


def unpack_rows(form: str, stored: np.ndarray, scales: np.ndarray, columns: int) -> np.ndarray:
    """The float32 values [rows, columns] of bytes and scales as they lie in memory."""
    known = FORMATS[form]
    codes = canonical_codes(form, stored)
    values = _values(form)[codes].reshape(len(codes), -1, BLOCK_LEN)
    factors = (
        np.ldexp(np.float32(1), scales.astype(np.int32) - _BIAS)
        if known.is_mx
        else scales.astype(np.float32)
    )
    restored: np.ndarray = (values * factors[..., None]).reshape(len(codes), -1)[:, :columns]
    return restored


def canonical_codes(form: str, stored: np.ndarray) -> np.ndarray:
    """The codes uint8 [rows, padded columns] of bytes as they lie in memory."""
    known = FORMATS[form]
    num_rows = len(stored)
    groups = stored.shape[1] // known.group_bytes
    main = np.ascontiguousarray(stored[:, : groups * 128]).view("<u2")
    halves = main.reshape(num_rows, groups, 16, 2, 2).transpose(0, 1, 3, 2, 4)
    if known.bits == 8:
        parts = [halves & 0xFF, halves >> 8]
    elif form == "mxfp4":
        parts = [_gather(halves, bits) for bits in _E2M1_BITS]
    else:
        parts = [halves >> 4 * place & 15 for place in range(_FOUR_BITS)]
    codes = np.stack(parts, axis=3).astype(np.uint8).reshape(num_rows, groups, -1, 16, 2)
    if form == "mxfp6":
        extra = np.ascontiguousarray(stored[:, groups * 128 :]).view("<u4")
        codes = _split_extra(codes, extra.reshape(num_rows, groups, 16))
    return codes.reshape(num_rows, -1)


def _join_four(blocks: np.ndarray, form: str) -> np.ndarray:
    """Half words of codes [rows, groups, 2, 4, 16, 2]: the four blocks of a word share them."""
    halves = np.zeros((*blocks.shape[:3], 16, 2), np.uint16)
    for place in range(_FOUR_BITS):
        codes = blocks[:, :, :, place].astype(np.uint16)
        if form == "mxfp4":
            for index, bit in enumerate(_E2M1_BITS[place]):
                halves |= (codes >> 3 - index & 1) << bit
        else:  # of E2M3 the lower exponent bit and the mantissa
            halves |= (codes & 15) << 4 * place
    return halves


def _gather(halves: np.ndarray, bits: tuple[int, ...]) -> np.ndarray:
    codes: np.ndarray = np.zeros(halves.shape, np.uint16)
    for bit in bits:
        codes = codes << 1 | halves >> bit & 1
    return codes


def _extra_bits(block: int, side: int) -> tuple[int, int]:
    """Where the sign and the upper exponent bit of E2M3 codes lie in a word.

    Turned left by two bits for each block they stand where bf16 wants them.
    """
    shift = 16 * side - _EXTRA_STEP * block
    return (15 + shift) % 32, (8 + shift) % 32


def _join_extra(codes: np.ndarray) -> np.ndarray:
    """Words [rows, groups, 16] of codes [rows, groups, 8, 16, 2]."""
    words = np.zeros((*codes.shape[:2], 16), np.uint32)
    for block in range(8):
        for side in range(2):
            sign, exponent = _extra_bits(block, side)
            code = codes[:, :, block, :, side].astype(np.uint32)
            words |= (code >> 5 & 1) << np.uint32(sign) | (code >> 4 & 1) << np.uint32(exponent)
    return words.astype("<u4")


def _split_extra(codes: np.ndarray, words: np.ndarray) -> np.ndarray:
    full = codes.copy()
    for block in range(8):
        for side in range(2):
            sign, exponent = _extra_bits(block, side)
            high = (words >> np.uint32(sign) & 1) << 1 | words >> np.uint32(exponent) & 1
            full[:, :, block, :, side] |= (high << 4).astype(np.uint8)
    return full


def _values(form: str) -> np.ndarray:
    """The number that each code stands for before its scale, float32 [256]."""
    known = FORMATS[form]
    codes = np.arange(256)
    if form == "q8_0":
        return codes.astype(np.uint8).view(np.int8).astype(np.float32)
    if form == "q4_0":
        return np.asarray(codes - 8, np.float32)
    sign_bit = known.exponent_bits + known.mantissa_bits
    field = codes >> known.mantissa_bits & (1 << known.exponent_bits) - 1
    mantissa = codes & (1 << known.mantissa_bits) - 1
    steps = np.where(field > 0, mantissa + (1 << known.mantissa_bits), mantissa)
    bias = (1 << known.exponent_bits - 1) - 1
    size = np.ldexp(steps.astype(np.float32), np.maximum(field, 1) - bias - known.mantissa_bits)
    return np.asarray(np.where(codes >> sign_bit & 1, -size, size), np.float32)
