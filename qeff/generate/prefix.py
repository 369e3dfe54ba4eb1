"""Which cache blocks hold the keys and values of which tokens: a tree of blocks by their content.

A node is a block, its tokens, and the node of the block before it; the roots are the salts. Nodes
are found by their parent and all their tokens, so two contents are never taken for one another, and
nobody finds what was computed under another salt. Only a leaf may be a block that is not full.
Knows nothing of who uses a block; it is told when one is taken for something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

MIN_COPIED_TOKENS = 4  # below this, computing them again is as cheap as copying a block
MAX_COMPARED = 16  # children that a search for a part of a block looks at


@dataclass(frozen=True, slots=True)
class Match:
    """What is there of a sequence's beginning: whole blocks to share, and a part of one to copy."""

    blocks: tuple[int, ...] = ()
    node: int = 0  # the last of the whole blocks; the root where there is none
    part: int | None = None  # a block whose first tokens are those that follow
    num_part: int = 0


@dataclass(frozen=True, slots=True)
class _Node:
    parent: int
    tokens: tuple[int, ...]
    block: int


class PrefixIndex:
    """The tree. Block numbers are the caller's; each has at most one node."""

    def __init__(self, block_len: int) -> None:
        self.block_len = block_len
        self._nodes: dict[int, _Node] = {}
        self._by_content: dict[tuple[int, tuple[int, ...]], int] = {}
        self._of_block: dict[int, int] = {}
        self._children: dict[int, dict[int, None]] = {}  # of each parent, oldest first
        self._roots: dict[str, int] = {}  # of the salts under which there is something
        self._salts: dict[int, str] = {}  # the same the other way round
        self._num_made = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, block: int) -> bool:
        return block in self._of_block

    def root(self, salt: str) -> int:
        """The node that stands before the first block under a salt."""
        if salt not in self._roots:
            self._roots[salt] = self._new_number()
            self._salts[self._roots[salt]] = salt
        return self._roots[salt]

    def match(self, tokens: Sequence[int], salt: str, most: int) -> Match:
        """The longest known beginning of ``tokens``, of at most ``most`` of them."""
        if salt not in self._roots:
            return Match()
        node = self._roots[salt]
        blocks: list[int] = []
        start = 0
        while start + self.block_len <= most:
            content = tuple(tokens[start : start + self.block_len])
            child = self._by_content.get((node, content))
            if child is None:
                break
            node = child
            blocks.append(self._nodes[node].block)
            start += self.block_len
        rest = tuple(tokens[start : min(most, start + self.block_len)])
        part, num_part = self._match_part(node, rest)
        return Match(tuple(blocks), node, part, num_part)

    def add(self, parent: int, tokens: Sequence[int], block: int) -> int:
        """Note what a block holds; the node of this content, which may be another block's."""
        content = tuple(tokens)
        known = self._by_content.get((parent, content))
        if known is not None:
            return known
        self._forget(block)
        node = self._new_number()
        self._nodes[node] = _Node(parent, content, block)
        self._by_content[parent, content] = node
        self._of_block[block] = node
        self._children.setdefault(parent, {})[node] = None
        return node

    def discard(self, block: int) -> None:
        """Forget a block; nothing after it can be found any more."""
        parent = self._forget(block)
        if parent in self._salts and parent not in self._children:
            del self._roots[self._salts.pop(parent)]

    def _forget(self, block: int) -> int | None:
        """Take a block's node out; the node before it."""
        number = self._of_block.pop(block, None)
        if number is None:
            return None
        node = self._nodes.pop(number)
        del self._by_content[node.parent, node.tokens]
        siblings = self._children[node.parent]
        del siblings[number]
        if not siblings:
            del self._children[node.parent]
        return node.parent

    def _match_part(self, parent: int, tokens: tuple[int, ...]) -> tuple[int | None, int]:
        best, num_best = None, MIN_COPIED_TOKENS - 1
        for child in list(self._children.get(parent, ()))[-MAX_COMPARED:]:
            node = self._nodes[child]
            num_equal = common_length(node.tokens, tokens)
            if num_equal > num_best:
                best, num_best = node.block, num_equal
        return (best, num_best) if best is not None else (None, 0)

    def _new_number(self) -> int:
        self._num_made += 1
        return self._num_made


Tokens = TypeVar("Tokens", list[int], tuple[int, ...])


def common_length(a: Tokens, b: Tokens) -> int:
    """How many tokens two sequences begin with alike."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:  # the first difference lies in low..high
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
