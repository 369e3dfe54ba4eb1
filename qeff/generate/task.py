"""A request on its way: its tokens, its text so far, and when it ends.

The engine makes one for each request, asks it what the next token depends on, and gives it the
token. Knows nothing of other requests, queues or sessions.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field

from qeff.generate.detokenize import Detokenizer, StopMatcher
from qeff.generate.request import MAX_SEED, Delta, FinishReason, Request, Result, Timings
from qeff.generate.sampling import Row
from qeff.generate.scheduler import SequenceState


@dataclass(slots=True)
class Task:
    """One request, from being added to its result; ``detokenizer`` is None for tokens alone."""

    request: Request
    eos_ids: frozenset[int]
    ctx_len: int
    detokenizer: Detokenizer | None
    sequence: SequenceState = field(init=False)
    seed: int = field(init=False)
    matcher: StopMatcher = field(init=False)
    added_at: float = field(init=False, default_factory=time.perf_counter)
    started_at: float | None = field(init=False, default=None)
    first_token_at: float | None = field(init=False, default=None)
    pieces: list[str] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        request, params = self.request, self.request.params
        self.sequence = SequenceState(request.id, list(request.prompt), len(request.prompt))
        self.seed = secrets.randbelow(MAX_SEED) if params.seed is None else params.seed
        self.matcher = StopMatcher(params.stop)

    @property
    def output(self) -> list[int]:
        return self.sequence.tokens[self.sequence.num_prompt :]

    def row(self) -> Row:
        """What the choice of the next token depends on."""
        params = self.request.params
        is_early = self.sequence.num_output < params.min_tokens
        forbidden = (*self.eos_ids, *params.stop_token_ids) if is_early else ()
        return Row(params, self.seed, self.request.prompt, self.output, forbidden)

    def accept(self, token: int) -> tuple[Delta, FinishReason | None]:
        """Add a token; what is certain of its text, and why it is the last one, if it is."""
        self.first_token_at = self.first_token_at or time.perf_counter()
        self.sequence.tokens.append(token)
        finish, piece = self._finish_by_token(token), ""
        if finish is None:
            piece = self._add_text(token)
            finish = FinishReason.STOP if self.matcher.is_stopped else self._finish_by_length()
        return Delta(self.request.id, (token,), piece), finish

    def finish(self, reason: FinishReason) -> tuple[str, Result]:
        """End the request: the text that was held back until here, and the whole result."""
        rest = ""
        if self.detokenizer is not None and not self.matcher.is_stopped:
            rest = self.matcher.push(self.detokenizer.flush()) + self.matcher.flush()
        ended_at = time.perf_counter()
        started_at = self.started_at or ended_at
        first_at = self.first_token_at or ended_at
        result = Result(
            request_id=self.request.id,
            prompt=self.request.prompt,
            token_ids=tuple(self.output),
            text="".join((*self.pieces, rest)),
            finish=reason,
            timings=Timings(started_at - self.added_at, first_at - started_at, ended_at - first_at),
        )
        return rest, result

    def _finish_by_token(self, token: int) -> FinishReason | None:
        params = self.request.params
        if token in params.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.EOS if token in self.eos_ids and not params.ignore_eos else None

    def _finish_by_length(self) -> FinishReason | None:
        if self.sequence.num_output == self.request.params.max_tokens:
            return FinishReason.LENGTH
        return FinishReason.CONTEXT if len(self.sequence.tokens) >= self.ctx_len else None

    def _add_text(self, token: int) -> str:
        if self.detokenizer is None:
            return ""
        piece = self.detokenizer.push((token,))
        if self.sequence.num_output >= self.request.params.min_tokens:
            piece = self.matcher.push(piece)
        self.pieces.append(piece)
        return piece
