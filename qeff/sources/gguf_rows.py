"""How stored GGUF tensors become one Hugging Face tensor: by moving rows, or by arithmetic.

Converters to GGUF permute heads, shift norms, transpose and split expert weights; transformers
undoes this tensor by tensor with *processors*. Running a processor on row numbers instead of
weights tells whether it only moves rows. Then packed blocks can be moved as they are, and no value
needs to be unpacked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from qeff.sources.gguf_header import GgufTensorInfo


class Conversion:
    """The way from one or more stored tensors to the tensor that transformers expects."""

    def __init__(self, processor: Any, key_map: dict[str, str], hf_name: str) -> None:
        self.processor = processor
        self.key_map = key_map
        self.hf_name = hf_name

    def apply(self, values: Sequence[tuple[str, np.ndarray]]) -> np.ndarray:
        """The Hugging Face tensor made from (GGUF name, values) of each stored part."""
        # A processor that joins several parts keeps them in this dictionary between calls.
        parsed: dict[str, dict[str, Any]] = {"tensors": {}}
        result = None
        for name, weights in values:
            done = self.processor.process(
                weights=weights,
                name=name,
                tensor_key_mapping=self.key_map,
                parsed_parameters=parsed,
            )
            if done.name is not None:
                result = done.weights
        joined = parsed["tensors"].get(self.hf_name)
        if joined is not None:
            return np.asarray(joined.numpy())
        assert result is not None, f"nothing was made for {self.hf_name}"
        return np.asarray(result)

    def row_order(
        self, parts: Sequence[GgufTensorInfo], shape: tuple[int, ...]
    ) -> np.ndarray | None:
        """Which stored row each row comes from, parts counted through; None if values change."""
        first, probes = 1.0, []  # rows are numbered from one, so that scaling and log show
        for part in parts:
            rows_shape = part.shape if len(part.shape) == 1 else (*part.shape[:-1], 1)
            count = math.prod(rows_shape)
            probes.append((part.name, np.arange(first, first + count).reshape(rows_shape)))
            first += count
        try:
            with np.errstate(all="ignore"):
                moved = self.apply(probes)
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
            return None  # it needs true columns, so it does more than move rows
        expected = shape if len(shape) == 1 else (*shape[:-1], 1)
        if moved.shape != expected or moved.size != first - 1:
            return None
        order = moved.reshape(-1)  # [rows]
        if not np.array_equal(np.sort(order), np.arange(1.0, first)):
            return None
        return order.astype(np.int64) - 1
