"""The block allocator against a plain dictionary of counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qeff.generate.blocks import BlockAllocator

ACTIONS = st.lists(st.tuples(st.sampled_from("asr"), st.integers(0, 11)), max_size=80)


@given(num_blocks=st.integers(1, 12), actions=ACTIONS)
def test_counts_and_free_blocks_agree_with_a_dictionary(num_blocks, actions):
    allocator = BlockAllocator(num_blocks)
    users: dict[int, int] = {}
    for action, number in actions:
        held = sorted(users)
        if action == "a" and allocator.num_free:
            block = allocator.allocate()
            assert block == min(set(range(num_blocks)) - set(users))  # lowest free, never in use
            users[block] = 1
        elif action == "s" and held:
            block = held[number % len(held)]
            allocator.share(block)
            users[block] += 1
        elif action == "r" and held:
            block = held[number % len(held)]
            allocator.release(block)
            users[block] -= 1
            if not users[block]:
                del users[block]
        assert allocator.num_free == num_blocks - len(users)
        assert [allocator.num_users(block) for block in range(num_blocks)] == [
            users.get(block, 0) for block in range(num_blocks)
        ]


def test_misuse_is_caught():
    allocator = BlockAllocator(1)
    with pytest.raises(AssertionError, match="free already"):
        allocator.release(0)
    with pytest.raises(AssertionError, match="cannot be shared"):
        allocator.share(0)
    allocator.allocate()
    with pytest.raises(AssertionError, match="no free block"):
        allocator.allocate()
