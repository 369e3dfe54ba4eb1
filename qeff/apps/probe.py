"""What a model is tried on while it is compiled: a page to measure it, a text to calibrate it.

Opens the container as any user would and runs the page as one sequence; the numbers made of its
logits go into the certificate. Calibration has a text of its own, of many kinds, or the user's. A
model without words gets random tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import numpy as np

from qeff.compile.calibration import Calibration
from qeff.compile.quality import Probe
from qeff.container import Container
from qeff.core.errors import OptionValueError, QeffError
from qeff.core.options import CompileOptions
from qeff.core.progress import log
from qeff.core.spec import ModelSpec
from qeff.generate import Text
from qeff.runtime import open_session
from qeff.runtime.session import Batch, Span

MAX_TOKENS = 128
CALIBRATION_TOKENS = 3072
CALIBRATION_LEN = 512  # shorter sequences show a model less of what it does with long ones
TEXT = """The lighthouse stood at the end of a long wall of stones. In winter waves came over the
wall, and nobody could reach the door for days. The keeper did not mind. He had bread, oil and a
shelf of books, and every evening he climbed the hundred and twelve steps to light the lamp. From
the top he counted the ships: 3 on a quiet night, sometimes 20 before a storm. He wrote the number
down with the date, the wind and the height of the water, because his father had done so. When the
harbour was made larger, an engineer came and asked for the books. She needed to know how often the
water had risen above four metres. "Why did you keep all this?" she asked. "I did not know what it
would be good for," said the keeper, "but I knew that it could not be counted afterwards."
"""


def make_probe(
    text_files: Mapping[str, bytes],
    spec: ModelSpec,
    options: CompileOptions,
    is_calibrated: bool = True,
) -> Probe:
    """The tokens that fit a model, and the way to run them.

    ``is_calibrated`` False leaves the calibration out, for weights that mean nothing.
    """
    text = _open_text(text_files)
    tokens, name = _tokens(text, spec.vocab_size, TEXT, "a page of English", MAX_TOKENS)
    calibration = _calibration(text, spec, options) if is_calibrated else None
    longest = min(options.ctx_len, spec.max_positions or options.ctx_len)
    return Probe(tokens[:longest], name, run_sequence, calibration)


def _open_text(text_files: Mapping[str, bytes]) -> Text | None:
    if "tokenizer.json" not in text_files:
        return None
    try:
        return Text(text_files)
    except QeffError as error:
        log.warning("the container is tried on random tokens: %s", error.what)
        return None


def _calibration(text: Text | None, spec: ModelSpec, options: CompileOptions) -> Calibration:
    """Sequences of equal length, each with the beginning of text where the tokenizer has one."""
    file = options.calibration_file
    words = files("qeff.apps").joinpath("calibration.txt").read_text("utf-8")
    name = "pages of many kinds"
    if file is not None:
        assert file.path is not None, "a file that is to be read has a path"
        words, name = _read(file.path), f"a text of the user's, sha256 {file.sha256[:16]}"
    tokens, name = _tokens(text, spec.vocab_size, words, name, CALIBRATION_TOKENS)
    length = min(CALIBRATION_LEN, spec.max_positions or CALIBRATION_LEN, len(tokens))
    sequences = tokens[: len(tokens) // length * length].reshape(-1, length).copy()
    if text is not None and text.encode("")[:1] == [tokens[0]]:
        sequences[:, 0] = tokens[0]
    return Calibration(sequences, name)


def _read(path: Path) -> str:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionValueError(
            f"{path} cannot be read as text: {error}", "--calibration-file takes UTF-8 text"
        ) from error
    if not text.strip():
        raise OptionValueError(f"{path} holds no text", "a few pages are enough")
    return text


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


def _tokens(
    text: Text | None, vocab_size: int, words: str, name: str, count: int
) -> tuple[np.ndarray, str]:
    """The first tokens of some words and their name, or random ones."""
    if text is not None:
        ids = np.asarray(text.encode(words), np.int64)[:count]
        if len(ids) and ids.max() < vocab_size:
            return ids, name
    draws = np.random.default_rng(count)
    return draws.integers(0, vocab_size, count), "random tokens"
