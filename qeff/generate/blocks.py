"""Which cache blocks are free and how many sequences use each: numbers only, no tensors.

A block may have several users, so that sequences can share the blocks of an equal beginning. The
lowest free number is given out first, which keeps runs reproducible and the used part compact.
"""

from __future__ import annotations

import heapq


class BlockAllocator:
    """Hands out the block numbers 0 to ``num_blocks`` − 1."""

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks > 0, "an allocator needs at least one block"
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks))  # a heap; a sorted list is one
        self._num_users = [0] * num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    def num_users(self, block: int) -> int:
        """How many sequences hold this block."""
        return self._num_users[block]

    def allocate(self) -> int:
        """Take a free block; the caller has looked that there is one."""
        assert self._free, "no free block; look at num_free first"
        block = heapq.heappop(self._free)
        self._num_users[block] = 1
        return block

    def share(self, block: int) -> None:
        """Add a user to a block that is in use."""
        assert self._num_users[block] > 0, f"block {block} is free and cannot be shared"
        self._num_users[block] += 1

    def release(self, block: int) -> None:
        """Take a user away; the last one frees the block."""
        assert self._num_users[block] > 0, f"block {block} is free already"
        self._num_users[block] -= 1
        if self._num_users[block] == 0:
            heapq.heappush(self._free, block)
