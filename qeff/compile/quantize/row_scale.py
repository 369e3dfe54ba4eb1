"""FP8 with one scale for each row: E4M3 elements, the largest of a row at the largest element.

Takes float32 rows. Knows nothing of blocks, nor of how codes and scales are stored.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

LARGEST = np.float32(448)  # of E4M3 without infinities


def quantise_fp8(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales float32 [rows] and codes uint8 [rows, columns]."""
    top = np.abs(rows).max(axis=1, initial=0.0).astype(np.float32)
    scales = np.where(top > 0, top / LARGEST, np.float32(1)).astype(np.float32)
    scaled = np.clip(rows / scales[:, None], -LARGEST, LARGEST)
    return scales, scaled.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


def restore_fp8(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The float32 values that codes and scales stand for."""
    return np.asarray(codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * scales[:, None])
