"""Which cache blocks are free, and how many sequences use each: numbers only, no tensors.

A block may have several users, so that sequences can share the blocks of an equal beginning. A
block without users may be kept for what it holds; it counts as free and is taken when no empty
block is left, the longest unused first. The lowest empty number is given out first, which keeps
runs reproducible and the used part compact.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable


class BlockAllocator:
    """Hands out the block numbers 0 to ``num_blocks`` − 1.

    Args:
        num_blocks: How many there are.
        on_evict: Told of a kept block before it is given to somebody else.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[int], None] | None = None) -> None:
        assert num_blocks > 0, "an allocator needs at least one block"
        self.num_blocks = num_blocks
        self._on_evict = on_evict
        self._empty = list(range(num_blocks))  # a heap; a sorted list is one
        self._kept: dict[int, None] = {}  # in the order they will be taken
        self._num_users = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks without users, empty or kept."""
        return len(self._empty) + len(self._kept)

    @property
    def num_kept(self) -> int:
        return len(self._kept)

    def num_users(self, block: int) -> int:
        """How many sequences hold this block."""
        return self._num_users[block]

    def allocate(self) -> int:
        """Take a free block; the caller has looked that there is one."""
        assert self.num_free > 0, "no free block; look at num_free first"
        if self._empty:
            block = heapq.heappop(self._empty)
        else:
            block = next(iter(self._kept))
            del self._kept[block]
            if self._on_evict is not None:
                self._on_evict(block)
        self._num_users[block] = 1
        return block

    def share(self, block: int) -> None:
        """Add a user to a block that is in use or kept."""
        if self._num_users[block] == 0:
            assert block in self._kept, f"block {block} is empty and cannot be shared"
            del self._kept[block]
        self._num_users[block] += 1

    def release(self, block: int, *, keep: bool = False) -> None:
        """Take a user away; the last one frees the block, or keeps it for what it holds."""
        assert self._num_users[block] > 0, f"block {block} is free already"
        self._num_users[block] -= 1
        if self._num_users[block] > 0:
            return
        if keep:
            self._kept[block] = None
        else:
            heapq.heappush(self._empty, block)
