"""Panels back to floats, value by value as docs/panels.md numbers them.

Shares no code with the packing, so that each can show a mistake of the other. Used to check, and to
run a container's own weights on another engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np

from qeff.compile.panels.layout import panel_shape

_PLAIN = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
_ELEMENTS = {
    "mxfp4": (ml_dtypes.float4_e2m1fn, 16),
    "mxfp8": (ml_dtypes.float8_e4m3fn, 256),
}
_WHOLE_BASES = np.array([-64, -32, 0, 32, -30, 2, -15, -13])
_SPLIT_BASES = np.array([0, 1, 2, 3, 16, 18, 32, 48, -64, -48, -32, -30, -16, -15, -14, -13])
_ROWS, _BLOCK = 16, 32
_PANELS_AT_ONCE = 64

# Value v of a block, by row and column: [16, 32].
_ROW, _COLUMN = np.meshgrid(np.arange(_ROWS), np.arange(_BLOCK), indexing="ij")
_ORDER = _COLUMN // 4 * 64 + _ROW * 4 + _COLUMN % 4
_BY_COLUMN = _COLUMN * _ROWS + _ROW


def unpack_panels(panels: np.ndarray, form: str, shape: Sequence[int]) -> np.ndarray:
    """The float32 matrix, or stack of matrices, that panels of this format stand for."""
    expected = panel_shape(form, shape)
    assert panels.shape == expected, f"panels {panels.shape}, {form}{shape} needs {expected}"
    *stack, rows, cols = shape
    per_matrix = -(-rows // _ROWS)
    out = np.empty((int(np.prod(stack, dtype=np.int64)), per_matrix * _ROWS, cols), np.float32)
    for i, matrix in enumerate(out):
        for start in range(0, per_matrix, _PANELS_AT_ONCE):
            stop = min(start + _PANELS_AT_ONCE, per_matrix)
            some = panels[i * per_matrix + start : i * per_matrix + stop]
            values = _READERS[form](np.ascontiguousarray(some))  # [panels, 16, whole blocks]
            matrix[start * _ROWS : stop * _ROWS] = values.reshape(-1, values.shape[2])[:, :cols]
    return out[:, :rows].reshape(tuple(shape))


def _plain(form: str) -> Callable[[np.ndarray], np.ndarray]:
    def read(panels: np.ndarray) -> np.ndarray:
        elements = panels.view(_PLAIN[form]).reshape(len(panels), -1, _ROWS)  # [panels, cols, 16]
        return np.asarray(elements.transpose(0, 2, 1), np.float32)

    return read


def _scales(data: np.ndarray, start: int, dtype: str) -> np.ndarray:
    """Sixteen scales of each block as float32 [panels, blocks, 16, 1]."""
    width = _ROWS * np.dtype(dtype).itemsize
    found = np.ascontiguousarray(data[..., start : start + width]).view(dtype)
    return np.asarray(found, np.float32)[..., None]


def _nibbles(data: np.ndarray) -> np.ndarray:
    """Codes of 4 bits [panels, blocks, 16, 32]."""
    return np.asarray(data[..., _ORDER % 256] >> (_ORDER // 256 * 4).astype(np.uint8) & 15)


def _sextets(data: np.ndarray) -> np.ndarray:
    """Codes of 6 bits [panels, blocks, 16, 32]."""
    high = data[..., 256 + _ORDER % 128] >> (_ORDER // 128 * 2).astype(np.uint8) & 3
    return np.asarray(_nibbles(data) | high << 4)


def _e2m3(data: np.ndarray) -> np.ndarray:
    """E2M3 elements [panels, blocks, 16, 32] by the bases of docs/panels.md."""
    group, place = _COLUMN // 4, _ROW * 4 + _COLUMN % 4
    third = group % 2 * 3 * 64 + place  # where the 192 bytes of four groups begin
    beside = data[..., third + group // 4 * 64].astype(np.int32)
    whole = _WHOLE_BASES[beside % 4 + beside // 16 % 2 * 4] + beside // 32 * 4
    nibble = data[..., third + 128] >> (group // 4 * 4).astype(np.uint8) & 15
    split = _SPLIT_BASES[nibble] + beside // 4 % 4 * 4
    return np.asarray(np.where(group % 4 < 2, whole, split), np.float32) / 8


def _rows(values: np.ndarray) -> np.ndarray:
    """[panels, blocks, 16, 32] as [panels, 16, columns]."""
    return values.transpose(0, 2, 1, 3).reshape(len(values), _ROWS, -1)


def _q8_0(panels: np.ndarray) -> np.ndarray:
    data = panels.reshape(len(panels), -1, 544)
    codes = data[..., 32 + _ORDER].view(np.int8).astype(np.float32)
    return _rows(_scales(data, 0, "<f2") * codes)


def _q4_0(panels: np.ndarray) -> np.ndarray:
    data = panels.reshape(len(panels), -1, 288)
    return _rows(_scales(data, 0, "<f2") * (_nibbles(data[..., 32:]).astype(np.float32) - 8))


def _q4_1(panels: np.ndarray) -> np.ndarray:
    data = panels.reshape(len(panels), -1, 320)
    codes = _nibbles(data[..., 64:]).astype(np.float32)
    return _rows(_scales(data, 0, "<f2") * codes + _scales(data, 32, "<f2"))


def _mx(form: str, group_bytes: int) -> Callable[[np.ndarray], np.ndarray]:
    def read(panels: np.ndarray) -> np.ndarray:
        data = panels.reshape(len(panels), -1, group_bytes)
        scales = np.ldexp(np.float32(1), data[..., :_ROWS].astype(np.int32) - 127)
        body = data[..., _ROWS:]
        if form == "mxfp6":
            return _rows(scales[..., None] * _e2m3(body))
        dtype, num_codes = _ELEMENTS[form]
        elements = np.arange(num_codes, dtype=np.uint8).view(dtype).astype(np.float32)
        codes = body[..., _BY_COLUMN] if form == "mxfp8" else _nibbles(body)
        return _rows(scales[..., None] * elements[codes])

    return read


def _q4_k(panels: np.ndarray) -> np.ndarray:
    data = panels.reshape(len(panels), -1, 2368)
    d, dmin = (np.repeat(_scales(data, at, "<f2"), 8, axis=1) for at in (0, 32))
    blocks = data[..., 64:].reshape(len(panels), -1, 288)
    codes = _nibbles(blocks[..., 32:]).astype(np.float32)
    return _rows(d * _scales(blocks, 0, "u1") * codes - dmin * _scales(blocks, 16, "u1"))


def _q6_k(panels: np.ndarray) -> np.ndarray:
    data = panels.reshape(len(panels), -1, 3360)
    d = np.repeat(_scales(data, 0, "<f2"), 8, axis=1)
    blocks = data[..., 32:].reshape(len(panels), -1, 416)
    halves = np.concatenate([_scales(blocks, 0, "i1"), _scales(blocks, 16, "i1")], axis=3)
    scales = np.repeat(halves, 16, axis=3)  # [panels, blocks, 16, 32]
    return _rows(d * scales * (_sextets(blocks[..., 32:]).astype(np.float32) - 32))


_READERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "f32": _plain("f32"),
    "f16": _plain("f16"),
    "bf16": _plain("bf16"),
    "q8_0": _q8_0,
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "mxfp4": _mx("mxfp4", 272),
    "mxfp6": _mx("mxfp6", 400),
    "mxfp8": _mx("mxfp8", 528),
    "q4_k": _q4_k,
    "q6_k": _q6_k,
}
