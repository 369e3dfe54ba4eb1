"""Where every byte of a panel lies: sizes of the formats, and rows brought into panel order.

Takes scales and codes in the order of rows, gives panels. Knows nothing of where the numbers come
from; ``unpacking.py`` reads the result back by its own way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qeff.compile.quantize.mx import ELEMENTS, element_values

PANEL_ROWS = 16
BLOCK_LEN = 32
_LANE = np.dtype(np.uint32)  # four neighbouring columns of a row, which lie together
# The stored numbers of E2M3 elements: eight times an element is a base, which the low bits of its
# number name, plus four times the bits above them.
_WHOLE_BASES = (-64, -32, 0, 32, -30, 2, -15, -13)
_SPLIT_BASES = (0, 1, 2, 3, 16, 18, 32, 48, -64, -48, -32, -30, -16, -15, -14, -13)


@dataclass(frozen=True, slots=True)
class PanelFormat:
    """The bytes that 16 rows of ``group_len`` columns take, and the bits of a code in a block."""

    name: str
    group_len: int
    group_bytes: int
    code_bits: int = 0  # 0: plain elements, no blocks
    is_padded: bool = True  # whether columns are filled up to whole groups


FORMATS = {
    item.name: item
    for item in (
        PanelFormat("f32", 1, 64),
        PanelFormat("f16", 1, 32),
        PanelFormat("bf16", 1, 32),
        PanelFormat("q8_0", 32, 544, 8),
        PanelFormat("q4_0", 32, 288, 4),
        PanelFormat("q4_1", 32, 320, 4),
        PanelFormat("mxfp4", 32, 272, 4),
        PanelFormat("mxfp6", 32, 400, 6),
        PanelFormat("mxfp8", 32, 528, 8),
        PanelFormat("q4_k", 256, 2368, 4, is_padded=False),
        PanelFormat("q6_k", 256, 3360, 6, is_padded=False),
    )
}


@dataclass(frozen=True, slots=True)
class Coded:
    """Some rows in a block format: scales of long blocks, scales of blocks of 32, and codes."""

    outer: tuple[np.ndarray, ...]  # each [rows, blocks of 256]
    inner: tuple[np.ndarray, ...]  # each [rows, blocks of 32]
    codes: np.ndarray  # uint8 [rows, columns in whole blocks]


def panel_bytes(form: str, cols: int) -> int:
    """The bytes of one panel of a matrix with this many columns."""
    known = FORMATS[form]
    assert known.is_padded or cols % known.group_len == 0, f"{form} cannot hold {cols} columns"
    return -(-cols // known.group_len) * known.group_bytes


def panel_shape(form: str, shape: Sequence[int]) -> tuple[int, int]:
    """The shape of the stored bytes of a matrix [rows, cols] or a stack of them."""
    *stack, rows, cols = shape
    num_panels = -(-rows // PANEL_ROWS)
    return int(np.prod(stack, dtype=np.int64)) * num_panels, panel_bytes(form, cols)


def plain_panels(rows: np.ndarray) -> np.ndarray:
    """Plain elements [rows, cols] as panels, uint8 [panels, bytes]: column by column."""
    turned = np.ascontiguousarray(_in_panels(rows).transpose(0, 2, 1))  # [panels, cols, 16]
    return turned.view(np.uint8).reshape(len(turned), -1)


def block_panels(coded: Coded, form: str) -> np.ndarray:
    """Scales and codes as panels, uint8 [panels, bytes]."""
    known = FORMATS[form]
    codes = _column_order(coded.codes) if form == "mxfp8" else _lane_order(coded.codes)
    if form == "mxfp6":
        codes = _join_e2m3(codes)
    elif known.code_bits != 8:
        codes = _join_nibbles(codes) if known.code_bits == 4 else _join_sextets(codes)
    body = np.concatenate([*map(_scale_bytes, coded.inner), codes], axis=2)  # [panels, blocks, ·]
    num_panels = len(body)
    if coded.outer:
        grouped = body.reshape(num_panels, coded.outer[0].shape[1], -1)
        body = np.concatenate([*map(_scale_bytes, coded.outer), grouped], axis=2)
    assert body.shape[2] == known.group_bytes, f"{form}: {body.shape[2]} bytes in a group"
    return body.reshape(num_panels, -1)


def _in_panels(rows: np.ndarray) -> np.ndarray:
    """[rows, n] as [panels, 16, n]; missing rows are zeros."""
    missing = -len(rows) % PANEL_ROWS
    if missing:
        rows = np.concatenate([rows, np.zeros((missing, rows.shape[1]), rows.dtype)])
    return rows.reshape(-1, PANEL_ROWS, rows.shape[1])


def _scale_bytes(scales: np.ndarray) -> np.ndarray:
    """[rows, blocks] as bytes [panels, blocks, 16 · itemsize]."""
    turned = np.ascontiguousarray(_in_panels(scales).transpose(0, 2, 1))
    return turned.view(np.uint8).reshape(*turned.shape[:2], -1)


def _lane_order(codes: np.ndarray) -> np.ndarray:
    """[rows, cols] as [panels, blocks, 512]: four neighbouring columns of all 16 rows together."""
    panels = _in_panels(np.ascontiguousarray(codes))
    lanes = panels.view(_LANE)  # [panels, 16, lanes]: four bytes move as one number
    turned = np.ascontiguousarray(lanes.transpose(0, 2, 1)).view(np.uint8)
    return turned.reshape(len(panels), -1, PANEL_ROWS * BLOCK_LEN)


def _column_order(codes: np.ndarray) -> np.ndarray:
    """[rows, cols] as [panels, blocks, 512]: column by column."""
    panels = _in_panels(codes)
    blocks = panels.reshape(len(panels), PANEL_ROWS, -1, BLOCK_LEN)
    return blocks.transpose(0, 2, 3, 1).reshape(len(panels), -1, PANEL_ROWS * BLOCK_LEN)


def _join_nibbles(codes: np.ndarray) -> np.ndarray:
    """Codes of 4 bits: the second half of a block in the high bits of the first."""
    half = codes.shape[2] // 2
    return np.asarray(codes[..., :half] | codes[..., half:] << 4)


def _join_sextets(codes: np.ndarray) -> np.ndarray:
    """Codes of 6 bits: the low four as nibbles, then the high two, four to a byte."""
    quarter = codes.shape[2] // 4
    high = codes >> 4
    joined = high[..., :quarter]
    for place in range(1, 4):
        joined = joined | high[..., place * quarter : (place + 1) * quarter] << 2 * place
    return np.concatenate([_join_nibbles(codes & 15), joined], axis=2)


def _join_e2m3(codes: np.ndarray) -> np.ndarray:
    """E2M3 elements: four groups of 64 in three times 64 bytes, two of them whole, two split."""
    groups = codes.reshape(*codes.shape[:2], 8, PANEL_ROWS * 4)
    planes = []
    for first in range(2):
        low, high = (_SPLIT_NUMBERS[groups[:, :, first + at]] for at in (2, 6))
        for at, beside in ((0, low), (4, high)):
            number = _WHOLE_NUMBERS[groups[:, :, first + at]]
            byte = number & 3 | (number & 4) << 2 | number >> 3 << 5
            planes.append(byte | beside >> 4 << 2)
        planes.append(low & 15 | high << 4)
    return np.concatenate(planes, axis=2)


def _e2m3_numbers(bases: Sequence[int]) -> np.ndarray:
    """The stored number of each code of the specification."""
    eightfold = [base + 4 * steps for steps in range(64 // len(bases)) for base in bases]
    number_of = {value: number for number, value in enumerate(eightfold)}
    elements = element_values(ELEMENTS["mxfp6"]) * 8
    return np.array([number_of[int(element)] for element in elements], np.uint8)


_WHOLE_NUMBERS = _e2m3_numbers(_WHOLE_BASES)
_SPLIT_NUMBERS = _e2m3_numbers(_SPLIT_BASES)
