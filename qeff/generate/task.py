"""A request on its way: its tokens, its text so far, and when it ends.

The engine makes one for each output that a request asks for, asks it what the next token depends
on, and gives it the token. Knows nothing of other requests, queues or sessions.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from qeff.core.errors import RequestError
from qeff.generate.bad_words import BadWords
from qeff.generate.constraint import Matcher
from qeff.generate.detokenize import Detokenizer, StopMatcher
from qeff.generate.params import SamplingParams
from qeff.generate.request import Choice, Delta, FinishReason, Request, Result, Timings
from qeff.generate.sampling import History, OutputView, Row
from qeff.generate.sequence import Choosing, SequenceState
from qeff.generate.speculation.draft import NO_DRAFT, Draft

_WORD = 2**64 - 1
_MAX_TOP_K = 2**31 - 1
_FLOAT32 = np.finfo(np.float32)


@dataclass(slots=True, eq=False)
class Task:
    """One output of a request, from being added to its result.

    Args:
        request: What was asked.
        index: Which of the request's outputs.
        seed: The seed of this output's random numbers.
        eos_ids: Tokens that end a text.
        ctx_len: Most tokens of prompt and output together.
        detokenizer: None for tokens alone.
        matcher: What the output must look like; None for anything.
        bad_words: What it may not hold.
    """

    request: Request
    index: int
    seed: int
    eos_ids: frozenset[int]
    ctx_len: int
    detokenizer: Detokenizer | None
    matcher: Matcher | None = None
    bad_words: BadWords | None = None
    sequence: SequenceState = field(init=False)
    stops: StopMatcher = field(init=False)
    history: History = field(init=False)
    added_at: float = field(init=False, default_factory=time.perf_counter)
    started_at: float | None = field(init=False, default=None)
    first_token_at: float | None = field(init=False, default=None)
    pieces: list[str] = field(init=False, default_factory=list)
    logprobs: list[Choice] = field(init=False, default_factory=list)
    prompt_logprobs: list[Choice] = field(init=False, default_factory=list)
    num_drafted: int = field(init=False, default=0)
    num_accepted: int = field(init=False, default=0)
    num_forced: int = field(init=False, default=0)
    num_cached: int = field(init=False, default=0)  # tokens of the prompt, when it first started
    plain_row: Row | None = field(init=False, default=None)  # where every row is the same
    ends: dict[int, FinishReason] = field(init=False)  # tokens that end the output
    max_len: int = field(init=False)  # most tokens of prompt and output that are wanted

    def __post_init__(self) -> None:
        request, params = self.request, self.request.params
        scores_prompt = params.prompt_logprobs is not None
        self.sequence = SequenceState(
            f"{request.id}/{self.index}",
            list(request.prompt),
            len(request.prompt),
            request.priority,
            request.cache_salt,
            shares=not scores_prompt,
            scores_prompt=scores_prompt,
        )
        self.ends = {} if params.ignore_eos else dict.fromkeys(self.eos_ids, FinishReason.EOS)
        self.ends |= dict.fromkeys(params.stop_token_ids, FinishReason.STOP)
        self.max_len = self.ctx_len
        if params.max_tokens is not None:
            self.max_len = min(self.ctx_len, len(request.prompt) + params.max_tokens)
        self.stops = StopMatcher(params.stop)
        self.history = History(params, request.prompt)
        if params.is_free and self.matcher is None:
            if params.is_plain:
                # The largest logit wins, whatever the tokens so far: they need not be in the row.
                self.plain_row = Row(params, self.seed, request.prompt, history=self.history)
            if params.typical_p == 1 and not scores_prompt:
                self.sequence.choosing = _choosing(params, self.seed)
        if scores_prompt:
            self.prompt_logprobs.append(Choice(request.prompt[0]))  # nothing stands before it

    @property
    def num_tokens_left(self) -> int:
        """How many tokens the output can still get."""
        return self.max_len - len(self.sequence.tokens)

    def row(self, drafted: Sequence[int] = ()) -> Row:
        """What the choice of the next token depends on, ``drafted`` ones taken as given."""
        if self.plain_row is not None:
            return self.plain_row
        params = self.request.params
        output = OutputView(self.sequence.tokens, self.sequence.num_prompt, drafted)
        is_early = len(output) < params.min_tokens
        forbidden = (*self.eos_ids, *params.stop_token_ids) if is_early else ()
        allowed = self.matcher.mask() if self.matcher and not drafted else None
        return Row(
            params,
            self.seed,
            self.request.prompt,
            output,
            forbidden,
            allowed,
            self.history,
            self.bad_words,
        )

    def fit(self, draft: Draft) -> Draft:
        """A draft without the tokens that the task's constraint will not take."""
        if self.matcher is None or not draft.is_chain:
            return draft
        return draft.cut(self.matcher.allows(draft.tokens))

    def forced(self) -> Draft:
        """The tokens that the task's constraint leaves no choice of."""
        most = self.num_tokens_left - 1
        if self.matcher is None or most <= 0:
            return NO_DRAFT
        return Draft.chain(self.matcher.forced()[:most], is_forced=True)

    def accept(self, choice: Choice) -> tuple[Delta, FinishReason | None]:
        """Add a token; what is certain of its text, and why it is the last one, if it is."""
        if self.first_token_at is None:
            self.first_token_at = time.perf_counter()
        token, tokens = choice.token, self.sequence.tokens
        tokens.append(token)
        if self.plain_row is None:
            self.history.push(token)
        logprobs: tuple[Choice, ...] = ()
        if choice.logprob is not None:
            logprobs = (choice,)
            self.logprobs.append(choice)
        finish, piece = self.ends.get(token), ""
        if finish is None:
            if self.matcher is not None:
                self.matcher.accept(token)
            if self.detokenizer is not None:
                piece = self._add_text(self.detokenizer, token)
            if self.stops.is_stopped or (self.matcher is not None and self.matcher.is_finished):
                finish = FinishReason.STOP
            elif len(tokens) >= self.max_len:
                is_long = self.sequence.num_output == self.request.params.max_tokens
                finish = FinishReason.LENGTH if is_long else FinishReason.CONTEXT
        return Delta(self.request.id, (token,), piece, None, self.index, logprobs), finish

    def finish(self, reason: FinishReason, error: RequestError | None = None) -> tuple[str, Result]:
        """End the task: the text that was held back until here, and the whole result."""
        rest = ""
        if self.detokenizer is not None and not self.stops.is_stopped:
            rest = self.stops.push(self.detokenizer.flush()) + self.stops.flush()
        ended_at = time.perf_counter()
        started_at = self.started_at or ended_at
        first_at = self.first_token_at or ended_at
        params = self.request.params
        result = Result(
            request_id=self.request.id,
            prompt=self.request.prompt,
            token_ids=tuple(self.sequence.tokens[self.sequence.num_prompt :]),
            text="".join((*self.pieces, rest)),
            finish=reason,
            timings=Timings(started_at - self.added_at, first_at - started_at, ended_at - first_at),
            logprobs=None if params.logprobs is None else tuple(self.logprobs),
            prompt_logprobs=(
                None if params.prompt_logprobs is None else tuple(self.prompt_logprobs)
            ),
            cumulative_logprob=(
                sum(choice.logprob or 0.0 for choice in self.logprobs) if self.logprobs else None
            ),
            num_cached_tokens=self.num_cached,
            num_drafted=self.num_drafted,
            num_accepted=self.num_accepted,
            num_forced=self.num_forced,
            index=self.index,
            error=error,
        )
        return rest, result

    def _add_text(self, detokenizer: Detokenizer, token: int) -> str:
        piece = detokenizer.push((token,))
        if self.sequence.num_output >= self.request.params.min_tokens:
            piece = self.stops.push(piece)
        self.pieces.append(piece)
        return piece


def _choosing(params: SamplingParams, seed: int) -> Choosing:
    """What a session needs to choose tokens."""
    key = seed & _WORD, seed >> 64
    temperature = min(max(params.temperature, float(_FLOAT32.tiny)), float(_FLOAT32.max))
    if params.is_greedy:
        temperature = 0.0
    return temperature, params.top_p, params.min_p, min(params.top_k, _MAX_TOP_K), key
