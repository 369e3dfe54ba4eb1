"""Rows of floats as panels of any format that a precision names, and the error that this makes.

Knows which quantiser belongs to which format; the arithmetic is in ``compile/quantize``.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from qeff.compile.panels.layout import BLOCK_LEN, Coded, block_panels, plain_panels
from qeff.compile.quantize.feedback import Sensitivity, quantise_rows
from qeff.compile.quantize.rounding import quantise, restore, scales_of
from qeff.compile.quantize.row_scale import quantise_fp8, restore_fp8

ENCODED = ("f32", "f16", "bf16", "q8_0", "q4_0", "mxfp4", "mxfp6", "mxfp8")
_LARGEST_HALF = np.float32(65504)


def encode_rows(
    rows: np.ndarray, form: str, sensitivity: Sensitivity | None = None
) -> tuple[np.ndarray, float]:
    """Panels, uint8 [panels, bytes], of float32 rows, and the sum of squared differences.

    With a ``sensitivity`` block formats round to where products with the matrix change least.
    """
    if form == "f32":
        return plain_panels(rows), 0.0
    if form in ("f16", "bf16"):
        narrow = _narrow(rows, form)
        return plain_panels(narrow), _distance(narrow.astype(np.float32), rows)
    coded, error = code_rows(rows, form, sensitivity)
    return block_panels(coded, form), error


def code_rows(
    rows: np.ndarray, form: str, sensitivity: Sensitivity | None = None
) -> tuple[Coded, float]:
    """Scales and codes of float32 rows, and the sum of squared differences.

    Besides the block formats there is ``fp8``, whose scales are [rows].
    """
    if form == "fp8":
        scales, codes = quantise_fp8(rows)
        return Coded((), (scales,), codes), _distance(restore_fp8(codes, scales), rows)
    blocks = _in_blocks(rows)
    if sensitivity is None:
        stored, codes = quantise(blocks, form)
    else:
        stored, codes = quantise_rows(blocks.reshape(len(rows), -1), form, sensitivity)
    restored = restore(codes.reshape(blocks.shape), scales_of(stored, form)[..., None], form)
    coded = Coded((), (stored,), codes.reshape(len(rows), -1))
    return coded, _distance(restored, blocks)


def _narrow(rows: np.ndarray, form: str) -> np.ndarray:
    if form == "bf16":
        return rows.astype(ml_dtypes.bfloat16)
    # What is too large for a half becomes the largest one; infinity would spoil every product.
    return np.asarray(np.clip(rows, -_LARGEST_HALF, _LARGEST_HALF), np.float16)


def _in_blocks(rows: np.ndarray) -> np.ndarray:
    """[rows, cols] as [rows, blocks, 32]; missing columns are zeros."""
    missing = -rows.shape[1] % BLOCK_LEN
    if missing:
        rows = np.concatenate([rows, np.zeros((len(rows), missing), rows.dtype)], axis=1)
    return rows.reshape(len(rows), -1, BLOCK_LEN)


def _distance(restored: np.ndarray, rows: np.ndarray) -> float:
    difference = restored - rows
    return energy_of(difference)


def energy_of(rows: np.ndarray) -> float:
    """The sum of squares; not finite when a value is not."""
    flat = rows.reshape(-1)
    return float(np.einsum("i,i->", flat, flat, dtype=np.float64))
