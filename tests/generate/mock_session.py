"""A session without a model: it remembers tokens in blocks and answers by a hash of what it reads.

A wrong block table, position or order of writes changes the hash, and so every token after it.
"""

from __future__ import annotations

import hashlib

import numpy as np

from qeff.runtime.session import Batch, Capabilities, StepOutput

EMPTY = -1


class MockSession:
    def __init__(
        self, *, vocab=64, ctx_len=64, block_len=None, sequences=4, chunk=8, max_blocks=None
    ):
        self.caps = Capabilities(
            vocab, ctx_len, block_len or ctx_len, sequences, chunk, max_blocks=max_blocks
        )
        self.step_sizes: list[int] = []
        self.is_closed = False

    def reserve(self, num_blocks: int) -> None:
        self.cache = np.full((num_blocks, self.caps.block_len), EMPTY)

    def step(self, batch: Batch) -> StepOutput:
        block_len, wanted, rows = self.caps.block_len, set(batch.logit_rows.tolist()), []
        assert len(batch.spans) <= self.caps.max_sequences
        assert [s.start for s in batch.spans] == [0, *(s.stop for s in batch.spans[:-1])]
        assert batch.spans[-1].stop == len(batch.tokens) == len(batch.positions)
        for span in batch.spans:
            assert 0 < span.stop - span.start <= self.caps.max_step_tokens
            assert np.all(np.diff(batch.positions[span.start : span.stop]) == 1)
            for index in range(span.start, span.stop):
                position = int(batch.positions[index])
                block = span.blocks[position // block_len]
                self.cache[block, position % block_len] = batch.tokens[index]
                if index in wanted:
                    history = self.cache[list(span.blocks)].reshape(-1)[: position + 1]
                    assert EMPTY not in history
                    rows.append(answer(history.tolist(), self.caps.vocab_size))
        self.step_sizes.append(len(batch.tokens))
        logits = np.stack(rows) if rows else np.zeros((0, self.caps.vocab_size), np.float32)
        return StepOutput(logits)

    def copy_blocks(self, pairs) -> None:
        for source, target in pairs:
            self.cache[target] = self.cache[source]

    def close(self) -> None:
        self.is_closed = True


def answer(history: list[int], vocab: int) -> np.ndarray:
    """Logits that are a pure function of the whole token history."""
    digest = hashlib.sha256(np.asarray(history, np.int64).tobytes()).digest()
    return np.random.default_rng(list(digest)).standard_normal(vocab).astype(np.float32) * 3


def greedy(prompt: list[int], count: int, vocab: int = 64) -> list[int]:
    """What a greedy engine must give, computed without one."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(np.argmax(answer(tokens, vocab))))
    return tokens[len(prompt) :]
