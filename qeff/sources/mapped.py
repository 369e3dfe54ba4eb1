"""Maps parts of a file into memory as arrays; pages are read when touched and can be dropped again.

Knows files and dtypes, not checkpoints.
"""

from __future__ import annotations

import numpy as np

from qeff.core.errors import SourceError
from qeff.core.tensor import FileRange


def map_bytes(place: FileRange) -> np.ndarray:
    """The bytes of a file range, read-only."""
    if place.length == 0:
        return np.empty(0, np.uint8)
    try:
        return np.memmap(place.path, np.uint8, "r", place.offset, (place.length,))
    except (OSError, ValueError) as error:
        # numpy says ValueError when the file has become shorter than the range.
        raise SourceError(
            f"{place.path} cannot be mapped: {error}",
            "the file was changed or removed; open it again",
        ) from error


def map_values(place: FileRange, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """The values of a file range; copied only when they do not lie on a multiple of their size."""
    data = map_bytes(place)
    if place.offset % dtype.alignment:
        data = np.array(data)
    return data.view(dtype).reshape(shape)
