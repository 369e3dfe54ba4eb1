"""The keys and values of one layer: numbered blocks of rows, in a format.

Rows of one kv head lie together within a block. Knows nothing of sequences: who owns a block, and
which rows of it count, the caller knows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

BLOCK_LEN = 64
_SCALED = 32  # dims that share a scale in mxint8
FORMATS = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
    "mxint8": torch.int8,
}


class LayerCache:
    """Keys [blocks, kv heads, block_len, key_dim], values likewise; mxint8 with scales."""

    def __init__(
        self,
        format: str,
        num_kv_heads: int,
        key_dim: int,
        value_dim: int,
        block_len: int = BLOCK_LEN,
    ) -> None:
        assert format in FORMATS, f"no cache format {format!r}"
        self.format = format
        self.num_kv_heads = num_kv_heads
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.block_len = block_len
        self.num_blocks = 0
        self.keys = self.values = torch.empty(0)
        self.key_scales: torch.Tensor | None = None
        self.value_scales: torch.Tensor | None = None

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block, keys, values and scales together."""
        size = FORMATS[self.format].itemsize
        row = (self.key_dim + self.value_dim) * size
        if self.format == "mxint8":
            row += _parts(self.key_dim) + _parts(self.value_dim)
        return row * self.num_kv_heads * self.block_len

    def allocate(self, num_blocks: int, device: torch.device | str) -> None:
        """Make room for this many blocks; what there was is lost. They are zero."""
        self.lay(torch.empty(0, dtype=torch.uint8), 0)  # given back before as much is asked for
        size = num_blocks * self.bytes_per_block
        self.lay(torch.zeros(size, dtype=torch.uint8, device=device), num_blocks)

    def lay(self, memory: torch.Tensor, num_blocks: int) -> None:
        """Use the first bytes of this memory for so many blocks; what they hold counts."""
        self.num_blocks = num_blocks
        kind, end = FORMATS[self.format], 0
        sizes = [(self.key_dim, kind), (self.value_dim, kind)]
        if self.format == "mxint8":
            sizes += [(_parts(dim), torch.uint8) for dim in (self.key_dim, self.value_dim)]
        parts = []
        for width, dtype in sizes:
            shape = (num_blocks, self.num_kv_heads, self.block_len, width)
            start, end = end, end + math.prod(shape) * dtype.itemsize
            parts.append(memory[start:end].view(dtype).view(shape))
        self.keys, self.values = parts[:2]
        self.key_scales, self.value_scales = parts[2:] or (None, None)

    def _memory(self) -> list[torch.Tensor]:
        """All there is, as bytes: copies do not depend on the format."""
        parts = [self.keys, self.values, self.key_scales, self.value_scales]
        return [part.view(torch.uint8) for part in parts if part is not None]

    def copy_blocks(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Copy whole blocks, all at once: see :func:`settled`."""
        for memory in self._memory():
            memory[targets] = memory[sources]

    def copy_rows(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Copy single rows, all at once; row r of block b has the number b * block_len + r."""
        size = self.block_len
        for memory in self._memory():
            memory[targets // size, :, targets % size] = memory[sources // size, :, sources % size]


def _parts(dim: int) -> int:
    return -(-dim // _SCALED)


def settled(pairs: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Sources and targets, all copied at once, that do what copying the pairs in order does."""
    origin: dict[int, int] = {}
    for source, target in pairs:
        origin[target] = origin.get(source, source)
    return list(origin.values()), list(origin)
