"""A weight matrix on the device, and the norm that may stand before its product.

Packed matrices lie as ``backends/cuda/layout`` says. Several weights of the program may be one
matrix here, their rows one below the other. Knows nothing of how products are made.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

PLAIN = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows are outputs, columns inputs."""

    format: str  # f32, f16, bf16, q8_0, q4_0, mxfp8, mxfp6, mxfp4 or fp8
    shape: tuple[int, int]
    codes: torch.Tensor  # plain: [rows, columns]; packed: bytes as laid out; fp8: e4m3 like plain
    scales: torch.Tensor | None = None  # of blocks of 32 columns; fp8: f32 [rows]

    @property
    def is_plain(self) -> bool:
        return self.format in PLAIN


@dataclass(frozen=True, slots=True)
class Norm:
    """Root mean square normalisation of a product's input."""

    gain: torch.Tensor  # [columns], of any float dtype
    eps: float
