"""A session without a model: it remembers tokens in blocks and answers by a hash of what it reads.

A wrong block table, position or order of writes changes the hash, and so every token after it. With
``window`` it looks back no further than that, and what lies before may be anything.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from qeff.generate import SamplingParams
from qeff.generate.sampling import Row, sample
from qeff.runtime.session import Batch, Capabilities, StepOutput

EMPTY = -1


class Begun:
    def __init__(self, output: StepOutput) -> None:
        self.output = output

    def result(self) -> StepOutput:
        output, self.output = self.output, None
        assert output is not None, "asked for twice"
        return output


class MockSession:
    def __init__(
        self, *, vocab=64, ctx_len=64, block_len=None, sequences=4, chunk=8, answers=None, **more
    ):
        more.setdefault("chooses", not more.get("num_heads"))
        self.caps = Capabilities(vocab, ctx_len, block_len or ctx_len, sequences, chunk, **more)
        self.answers = answers or answer
        self.step_sizes: list[int] = []
        self.guesses: dict[int, list[int]] = {}
        self.is_closed = False
        self.chosen = None
        self.num_begun = 0

    def reserve(self, num_blocks: int) -> None:
        self.cache = np.full(num_blocks * self.caps.block_len, EMPTY)

    def step(self, batch: Batch) -> StepOutput:
        assert len(batch.spans) <= self.caps.max_sequences
        assert [s.start for s in batch.spans] == [0, *(s.stop for s in batch.spans[:-1])]
        assert batch.spans[-1].stop == len(batch.tokens) == len(batch.positions)
        wanted = {}
        for span in batch.spans:
            self._run_span(batch, span, wanted)
        self.step_sizes.append(len(batch.tokens))
        rows = [wanted[row] for row in batch.logit_rows.tolist()]
        assert len(rows) == len(set(batch.logit_rows.tolist()))
        logits = np.stack(rows) if rows else np.zeros((0, self.caps.vocab_size), np.float32)
        if self.caps.num_heads:
            asked = [self.guesses[row] for row in batch.logit_rows.tolist()]
            return StepOutput(logits, guesses=np.array(asked).reshape(-1, self.caps.num_heads))
        output = choose(logits, batch.choices)
        self.chosen = None if output.tokens is None else output.tokens.tolist()
        return output

    def begin(self, batch: Batch):
        """Run the step at once, and tell its tokens when they are asked for."""
        assert self.caps.overlaps
        known = np.array([self.chosen[-1 - t] if t < 0 else t for t in batch.tokens.tolist()])
        output = self.step(replace(batch, tokens=known))
        self.num_begun += 1
        return Begun(output)

    def _run_span(self, batch, span, wanted):
        assert 0 < span.stop - span.start <= self.caps.max_step_tokens
        first = int(batch.positions[span.start])
        places = [self._place(span, i) for i in range(first + span.stop - span.start)]
        asked = set(batch.logit_rows.tolist())
        if batch.parents is None:
            assert np.all(np.diff(batch.positions[span.start : span.stop]) == 1)
        else:
            assert self.caps.supports_trees
        for index in range(span.start, span.stop):
            self.cache[places[first + index - span.start]] = batch.tokens[index]
        for index in range(span.start, span.stop):
            branch, at = [], index
            while at >= span.start:
                branch.append(places[first + at - span.start])
                at = at - 1 if batch.parents is None else int(batch.parents[at])
            assert int(batch.positions[index]) == first + len(branch) - 1
            if index in asked:
                seen = (places[:first] + branch[::-1])[-(self.caps.window or self.caps.ctx_len) :]
                history = self.cache[seen]
                assert EMPTY not in history
                wanted[index] = self.answers(history.tolist(), self.caps.vocab_size)
                if self.caps.num_heads:
                    self.guesses[index] = self._guess(history.tolist())

    def _guess(self, history):
        """What greedy decoding gives after the next token: heads that are mostly right."""
        tokens = list(history)
        for _ in range(1 + self.caps.num_heads):
            tokens.append(int(np.argmax(self.answers(tokens, self.caps.vocab_size))))
        return [token if token % 5 else 0 for token in tokens[len(history) + 1 :]]

    def _place(self, span, row):
        return span.blocks[row // self.caps.block_len] * self.caps.block_len + (
            row % self.caps.block_len
        )

    def copy_blocks(self, pairs) -> None:
        blocks = self.cache.reshape(-1, self.caps.block_len)
        for source, target in pairs:
            blocks[target] = blocks[source]

    def copy_rows(self, pairs) -> None:
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


def choose(logits: np.ndarray, choices: np.ndarray | None) -> StepOutput:
    """What a step gives whose rows may have choices: by the numpy functions, row by row."""
    if choices is None:
        return StepOutput(logits)
    assert len(choices) == len(logits)
    tokens = np.full(len(logits), -1)
    for place, (temperature, top_p, min_p, top_k, key, index) in enumerate(choices.tolist()):
        if temperature >= 0 and np.isfinite(logits[place]).all():
            params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
            row = Row(params, int(key[0]) | int(key[1]) << 64, output=range(index))
            tokens[place] = sample(logits[place : place + 1], [row])[0].token
    return StepOutput(logits[choices["temperature"] < 0], tokens)
