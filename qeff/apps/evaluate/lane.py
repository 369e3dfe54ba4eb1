"""A lane: one phase's session, fed one window after the other.

Each window begins at position zero and writes over the cache of the one before. Knows how a
session is driven; what its logits mean is told elsewhere.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from qeff.container import Container
from qeff.core.errors import OptionValueError, RequestError
from qeff.runtime import Session, open_session
from qeff.runtime.session import Batch, Span

MAX_LOGIT_BYTES = 64 << 20  # of one step, for each phase


@dataclass(frozen=True, slots=True)
class Phase:
    """A name, the container that it runs, and the phase that it is equal to, if any."""

    name: str
    container: Container
    same_as: str | None = None

    @property
    def target(self) -> str:
        return str(self.container.manifest.target)

    @property
    def precision(self) -> dict[str, str]:
        return dict(self.container.manifest.precision)


class Lane:
    """An opened phase."""

    def __init__(self, phase: Phase, ctx_len: int, threads: int | None) -> None:
        self.phase = phase
        self.session: Session = open_session(phase.container, threads=threads)
        caps = self.session.caps
        if ctx_len > caps.ctx_len:
            raise OptionValueError(
                f"windows of {ctx_len} tokens do not fit the container's context of {caps.ctx_len}",
                "lower --ctx-len, or compile with a larger one",
            )
        num_blocks = -(-ctx_len // caps.block_len)
        self._blocks = tuple(range(num_blocks))
        self.session.reserve(num_blocks)
        self.vocab_size = caps.vocab_size
        self.max_tokens = max(
            1, min(caps.max_step_tokens, MAX_LOGIT_BYTES // (4 * self.vocab_size))
        )
        self.seconds = 0.0
        self.num_tokens = 0

    def step(self, tokens: np.ndarray, start: int, rows: np.ndarray) -> np.ndarray:
        """Logits of some of the tokens, which stand at ``start`` in their window."""
        batch = Batch(
            tokens=tokens,
            positions=np.arange(start, start + len(tokens)),
            spans=(Span(0, len(tokens), self._blocks),),
            logit_rows=rows,
        )
        began = time.perf_counter()
        logits = self.session.step(batch).logits
        self.seconds += time.perf_counter() - began
        self.num_tokens += len(tokens)
        return logits

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.seconds if self.seconds > 0 else 0.0

    def close(self) -> None:
        """Give memory and threads back."""
        self.session.close()


def check_vocabulary(lanes: list[Lane], ids: np.ndarray) -> None:
    """All phases must speak of the same tokens, and the text must hold only those."""
    sizes = sorted({lane.vocab_size for lane in lanes})
    if len(sizes) > 1:
        raise RequestError(
            f"the phases have {sizes[0]} and {sizes[-1]} tokens in their vocabularies",
            "the container was made of another model",
        )
    if int(ids.max()) >= sizes[0]:
        raise RequestError(
            f"token id {int(ids.max())} is not in the model's vocabulary of {sizes[0]}",
            "the tokenizer does not belong to this model",
        )
