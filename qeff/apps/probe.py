"""What a compiled container is tried on: a page of plain English, or random tokens without words.

Opens the container as any user would and runs the text as one sequence. The numbers made of its
logits go into the certificate.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from qeff.compile.quality import Probe
from qeff.container import Container
from qeff.core.errors import QeffError
from qeff.core.progress import log
from qeff.generate import Text
from qeff.runtime import open_session
from qeff.runtime.session import Batch, Span

MAX_TOKENS = 128
TEXT = """The lighthouse stood at the end of a long wall of stones. In winter waves came over the
wall, and nobody could reach the door for days. The keeper did not mind. He had bread, oil and a
shelf of books, and every evening he climbed the hundred and twelve steps to light the lamp. From
the top he counted the ships: 3 on a quiet night, sometimes 20 before a storm. He wrote the number
down with the date, the wind and the height of the water, because his father had done so. When the
harbour was made larger, an engineer came and asked for the books. She needed to know how often the
water had risen above four metres. "Why did you keep all this?" she asked. "I did not know what it
would be good for," said the keeper, "but I knew that it could not be counted afterwards."
"""


def make_probe(text_files: Mapping[str, bytes], vocab_size: int, ctx_len: int) -> Probe:
    """The tokens that fit a model, and the way to run them."""
    tokens, name = _tokens(text_files, vocab_size)
    return Probe(tokens[:ctx_len], name, run_sequence)


def run_sequence(folder: Path, tokens: np.ndarray) -> np.ndarray:
    """The logits [T, vocab] that a container gives for one sequence, in chunks that it can take."""
    session = open_session(Container.open(folder))
    try:
        caps = session.caps
        count = len(tokens)
        assert count <= caps.ctx_len, f"{count} tokens in a context of {caps.ctx_len}"
        blocks = tuple(range(-(-count // caps.block_len)))
        session.reserve(len(blocks))
        rows = []
        for start in range(0, count, caps.max_step_tokens):
            stop = min(start + caps.max_step_tokens, count)
            places = np.arange(start, stop)
            step = Batch(
                tokens[start:stop], places, (Span(0, stop - start, blocks),), places - start
            )
            rows.append(session.step(step).logits)
        return np.concatenate(rows)
    finally:
        session.close()


def _tokens(text_files: Mapping[str, bytes], vocab_size: int) -> tuple[np.ndarray, str]:
    if "tokenizer.json" in text_files:
        try:
            ids = np.asarray(Text(text_files).encode(TEXT), np.int64)[:MAX_TOKENS]
        except QeffError as error:
            log.warning("the container is tried on random tokens: %s", error.what)
            ids = np.empty(0, np.int64)
        if len(ids) and ids.max() < vocab_size:
            return ids, "a page of English"
    draws = np.random.default_rng(7)
    return draws.integers(0, vocab_size, MAX_TOKENS), "random tokens"
