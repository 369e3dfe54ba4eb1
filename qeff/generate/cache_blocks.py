"""The cache of an engine as numbers: which blocks a sequence has, takes over, writes and leaves.

Blocks are shared where sequences begin alike, copied before a shared one is written, and kept for
what they hold until they are needed. Knows nothing of the order in which sequences run.
"""

from __future__ import annotations

from qeff.generate.blocks import BlockAllocator
from qeff.generate.prefix import MIN_COPIED_TOKENS, Match, PrefixIndex
from qeff.generate.sequence import SequenceState
from qeff.runtime.session import Capabilities


def num_blocks_for(num_tokens: int, block_len: int) -> int:
    """How many blocks hold this many tokens."""
    return -(-num_tokens // block_len)


class CacheBlocks:
    """All blocks of a session, and what is known of their content.

    ``copies`` are the blocks to copy before the next step, (from, to) in order; whoever runs the
    step takes them.
    """

    def __init__(self, caps: Capabilities, num_blocks: int, *, reuses_prefixes: bool) -> None:
        assert num_blocks >= num_blocks_for(caps.ctx_len, caps.block_len), (
            f"{num_blocks} blocks cannot hold one full context"
        )
        self.block_len = caps.block_len
        self.window = caps.window
        self.reuses_prefixes = reuses_prefixes
        self.index = PrefixIndex(caps.block_len)
        self.blocks = BlockAllocator(num_blocks, on_evict=self.index.discard)
        self.copies: list[tuple[int, int]] = []

    def can_hold(self, sequence: SequenceState, num_spare: int) -> bool:
        """Whether there are blocks for all known tokens of a sequence, and some to spare."""
        needed = num_blocks_for(len(sequence.tokens), self.block_len) + num_spare
        if needed <= self.blocks.num_free:
            return True
        shared = self.match(sequence).blocks
        num_used = sum(self.blocks.num_users(block) > 0 for block in shared)
        return needed - num_used <= self.blocks.num_free

    def has_place(self, sequence: SequenceState, num_tokens: int) -> bool:
        """Whether the next tokens can be written into the blocks that a sequence has."""
        blocks, first = sequence.blocks, sequence.num_computed
        if first + num_tokens > len(blocks) * self.block_len:
            return False
        return self.blocks.num_users(blocks[first // self.block_len]) == 1

    def share(self, sequence: SequenceState, copy: SequenceState) -> None:
        """Give a copy of a sequence the same blocks."""
        copy.num_computed, copy.num_dropped = sequence.num_computed, sequence.num_dropped
        copy.num_indexed, copy.node = sequence.num_indexed, sequence.node
        copy.blocks = list(sequence.blocks)
        for block in copy.blocks[copy.num_dropped :]:
            self.blocks.share(block)

    def match(self, sequence: SequenceState) -> Match:
        most = len(sequence.tokens) - 1 if self.reuses_prefixes and sequence.shares else 0
        return self.index.match(sequence.tokens, sequence.salt, most)

    def start(self, sequence: SequenceState) -> None:
        """Give a sequence what is known of its beginning, and blocks for the rest."""
        match = self.match(sequence)
        for block in match.blocks:
            self.blocks.share(block)
        sequence.blocks = list(match.blocks)
        sequence.num_indexed, sequence.node = len(match.blocks), match.node
        sequence.num_computed = len(match.blocks) * self.block_len
        if match.part is not None:
            self.blocks.share(match.part)  # so that it is not the one that is taken
            if self.blocks.num_free > 0:
                sequence.blocks.append(self.blocks.allocate())
                self.copies.append((match.part, sequence.blocks[-1]))
                sequence.num_computed += match.num_part
            self.blocks.release(match.part, keep=True)
        sequence.num_reused = sequence.num_computed
        has_room = self.reserve(sequence, len(sequence.tokens))
        assert has_room, "a sequence was let in without room for it"

    def reserve(self, sequence: SequenceState, num_tokens: int) -> bool:
        """Blocks for this many tokens, and the first one to be written the sequence's own."""
        needed = num_blocks_for(num_tokens, self.block_len) - len(sequence.blocks)
        at = sequence.num_computed // self.block_len
        is_shared = at < len(sequence.blocks) and self.blocks.num_users(sequence.blocks[at]) > 1
        if max(needed, 0) + is_shared > self.blocks.num_free:
            return False
        if is_shared:
            old, new = sequence.blocks[at], self.blocks.allocate()
            self.copies.append((old, new))
            self.blocks.release(old)
            sequence.blocks[at] = new
        sequence.blocks.extend(self.blocks.allocate() for _ in range(needed))
        return True

    def release(self, sequence: SequenceState) -> None:
        """Take all blocks away. The last goes first, so that it is the first to be taken."""
        self._note_part(sequence)
        for block in reversed(sequence.blocks[sequence.num_dropped :]):
            self.blocks.release(block, keep=block in self.index)
        sequence.blocks.clear()
        sequence.num_computed = sequence.num_indexed = sequence.num_dropped = 0

    def drop_old(self, sequence: SequenceState) -> None:
        """Free blocks that no layer looks at any more."""
        if self.window is None:
            return
        num_left = max(sequence.num_computed - self.window, 0) // self.block_len
        for at in range(sequence.num_dropped, num_left):
            block = sequence.blocks[at]
            self.blocks.release(block, keep=block in self.index)
        sequence.num_dropped = max(num_left, sequence.num_dropped)

    def row(self, sequence: SequenceState, index: int) -> int:
        block = sequence.blocks[index // self.block_len]
        return block * self.block_len + index % self.block_len

    def note_content(self, sequence: SequenceState) -> None:
        """Tell the index of blocks that have become full, and of the end of a prompt."""
        block_len, num_computed = self.block_len, sequence.num_computed
        is_full = num_computed >= (sequence.num_indexed + 1) * block_len
        if not self.reuses_prefixes or not (is_full or num_computed == sequence.num_prompt):
            return
        if is_full and sequence.num_indexed == 0:
            sequence.node = self.index.root(sequence.salt)
        while (sequence.num_indexed + 1) * block_len <= num_computed:
            first = sequence.num_indexed * block_len
            content = sequence.tokens[first : first + block_len]
            block = sequence.blocks[sequence.num_indexed]
            sequence.node = self.index.add(sequence.node, content, block)
            sequence.num_indexed += 1
        if num_computed == sequence.num_prompt:
            self._note_part(sequence)

    def _note_part(self, sequence: SequenceState) -> None:
        first = sequence.num_indexed * self.block_len
        content = sequence.tokens[first : sequence.num_computed]
        if self.reuses_prefixes and len(content) >= MIN_COPIED_TOKENS:
            parent = sequence.node if sequence.num_indexed else self.index.root(sequence.salt)
            self.index.add(parent, content, sequence.blocks[sequence.num_indexed])
