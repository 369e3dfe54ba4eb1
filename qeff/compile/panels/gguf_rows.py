"""Packed rows of a GGUF file as scales and codes of a panel format, without a change of any number.

Block layouts are those of the ggml file format. A row is ``uint8 [blocks · bytes of a block]``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qeff.compile.panels.layout import Coded
from qeff.compile.panels.matrix import NoNumber
from qeff.core.formats import FORMATS

# What a packed format becomes where nothing is lost.
EXACT = {
    "q8_0": "q8_0",
    "q4_0": "q4_0",
    "q4_1": "q4_1",
    "q5_0": "q8_0",  # the same scale; a code of five bits is one of eight
    "q4_k": "q4_k",
    "q6_k": "q6_k",
    "mxfp4": "mxfp4",
}

_MX_NAN = 255


def read_gguf_rows(rows: np.ndarray, form: str) -> Coded:
    """Packed rows [rows, bytes] as scales and codes of ``EXACT[form]``."""
    blocks = rows.reshape(len(rows), -1, FORMATS[form].block_bytes)
    return _READERS[form](blocks)


def _half(blocks: np.ndarray, start: int) -> np.ndarray:
    """A float16 of each block: [rows, blocks]."""
    scales = np.ascontiguousarray(blocks[..., start : start + 2]).view("<f2")[..., 0]
    if not np.isfinite(scales).all():
        raise NoNumber("a block has a scale that is no number")
    return scales


def _nibbles(data: np.ndarray) -> np.ndarray:
    """Low halves of the bytes, then high halves: [..., 2 · bytes]."""
    return np.concatenate([data & 15, data >> 4], axis=-1)


def _flat(codes: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(codes).reshape(len(codes), -1)


def _q8_0(blocks: np.ndarray) -> Coded:
    return Coded((), (_half(blocks, 0),), _flat(blocks[..., 2:]))


def _q4_0(blocks: np.ndarray) -> Coded:
    return Coded((), (_half(blocks, 0),), _flat(_nibbles(blocks[..., 2:])))


def _q4_1(blocks: np.ndarray) -> Coded:
    return Coded((), (_half(blocks, 0), _half(blocks, 2)), _flat(_nibbles(blocks[..., 4:])))


def _q5_0(blocks: np.ndarray) -> Coded:
    fifth = np.unpackbits(blocks[..., 2:6], axis=-1, bitorder="little")  # [rows, blocks, 32]
    codes = (_nibbles(blocks[..., 6:]) | fifth << 4) - np.uint8(16)
    return Coded((), (_half(blocks, 0),), _flat(codes))


def _mxfp4(blocks: np.ndarray) -> Coded:
    if (blocks[..., 0] == _MX_NAN).any():
        raise NoNumber("a block has a scale that is no number")
    return Coded((), (blocks[..., 0],), _flat(_nibbles(blocks[..., 1:])))


def _q4_k(blocks: np.ndarray) -> Coded:
    packed = blocks[..., 4:16]
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=-1)
    mins = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=-1)
    # 32 bytes hold two blocks of 32: one in the low halves, the next in the high ones.
    data = blocks[..., 16:].reshape(*blocks.shape[:2], 4, 32)
    outer = _half(blocks, 0), _half(blocks, 2)
    return Coded(outer, (_flat(scales), _flat(mins)), _flat(_nibbles(data)))


def _q6_k(blocks: np.ndarray) -> Coded:
    shape = blocks.shape[:2]
    low = _nibbles(blocks[..., :128].reshape(*shape, 2, 64))  # of each half: columns in order
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = blocks[..., 128:192].reshape(*shape, 2, 1, 32) >> shifts
    codes = low | (high & 3).reshape(*shape, 2, 128) << 4
    scales = blocks[..., 192:208].reshape(len(blocks), -1, 2)  # of columns 0-15 and 16-31
    return Coded((_half(blocks, 208),), (scales[..., 0], scales[..., 1]), _flat(codes))


_READERS: dict[str, Callable[[np.ndarray], Coded]] = {
    "q8_0": _q8_0,
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q4_k": _q4_k,
    "q6_k": _q6_k,
    "mxfp4": _mxfp4,
}
