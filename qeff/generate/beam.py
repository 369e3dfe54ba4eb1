"""Beam search for one request: several sequences that grow together, the best of them kept.

All beams are expanded by their likeliest tokens, the best continuations become the next beams, and
those that end are set aside. The comparison and the end of the search are those of transformers.
Knows nothing of sessions; the scheduler is asked to copy and to drop sequences.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from qeff.core.errors import RequestError
from qeff.generate.detokenize import StopMatcher
from qeff.generate.request import Choice, FinishReason, Request, Result, Timings
from qeff.generate.sampling import Continuation, OutputView, Row
from qeff.generate.scheduler import Scheduler
from qeff.generate.sequence import SequenceState

if TYPE_CHECKING:
    from qeff.generate.bad_words import BadWords
    from qeff.generate.constraint import Matcher
    from qeff.generate.text import Text


@dataclass(slots=True, eq=False)
class _Beam:
    sequence: SequenceState
    score: float  # the sum of the scores of its tokens
    logprobs: tuple[Choice, ...]
    matcher: Matcher | None
    choices: list[Continuation] | None = None  # how it may go on, once its logits were there


@dataclass(frozen=True, slots=True)
class _Ending:
    """A beam that ended, with its rank among all endings."""

    rank: float
    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[Choice, ...]
    finish: FinishReason


class BeamSearch:
    """The beams of a request, from its prompt to its results."""

    def __init__(
        self,
        request: Request,
        *,
        eos_ids: frozenset[int],
        ctx_len: int,
        text: Text | None,
        matcher: Matcher | None = None,
        bad_words: BadWords | None = None,
    ) -> None:
        self.request = request
        self._eos_ids = eos_ids
        self._ctx_len = ctx_len
        self._text = text
        self._bad_words = bad_words
        self._num_made = 0
        self._endings: list[_Ending] = []
        self._added_at = time.perf_counter()
        self._first_at: float | None = None
        self.started_at: float | None = None  # both are set when its prompt begins to run
        self.num_cached = 0  # tokens of the prompt that were in the cache then
        scores_prompt = request.params.prompt_logprobs is not None
        self.prompt_logprobs = [Choice(request.prompt[0])]  # nothing stands before it
        sequence = SequenceState(
            f"{request.id}/beam0",
            list(request.prompt),
            len(request.prompt),
            request.priority,
            request.cache_salt,
            shares=not scores_prompt,
            scores_prompt=scores_prompt,
        )
        self._beams = [_Beam(sequence, 0.0, (), matcher)]

    @property
    def sequences(self) -> list[SequenceState]:
        return [beam.sequence for beam in self._beams]

    @property
    def is_ready(self) -> bool:
        """Whether every beam knows how it may go on."""
        return all(beam.choices is not None for beam in self._beams)

    @property
    def num_expanded(self) -> int:
        """Continuations of each beam that can matter: as many beams may end as go on."""
        return 2 * self.request.params.beam_width

    def row(self, sequence: SequenceState) -> Row:
        """What the continuations of a beam depend on besides its logits."""
        params = self.request.params
        beam = self._of(sequence)
        forbidden: tuple[int, ...] = ()
        if sequence.num_output < params.min_tokens:
            forbidden = (*self._eos_ids, *params.stop_token_ids)
        output = OutputView(sequence.tokens, sequence.num_prompt)
        allowed = beam.matcher.mask() if beam.matcher else None
        return Row(
            params,
            0,
            self.request.prompt,
            output,
            forbidden,
            allowed,
            bad_words=self._bad_words,
        )

    def note(self, sequence: SequenceState, choices: list[Continuation]) -> None:
        """The likeliest continuations of a beam."""
        self._of(sequence).choices = choices
        sequence.is_parked = True
        self._first_at = self._first_at or time.perf_counter()

    def advance(self, scheduler: Scheduler) -> Result | None:
        """Choose the next beams; the result when the search is over."""
        assert self.is_ready, "beams are chosen when all have been expanded"
        width = self.request.params.beam_width
        candidates = [
            (beam.score + score, beam, choice)
            for beam in self._beams
            for score, choice in beam.choices or ()
        ]
        candidates.sort(key=lambda candidate: -candidate[0])
        if not candidates:
            raise RequestError("no beam can go on", "the constraint and the bad words forbid all")
        chosen: list[tuple[float, _Beam, Choice]] = []
        for place, (score, beam, choice) in enumerate(candidates[: self.num_expanded]):
            ending = self._ending(score, beam, choice)
            if ending is None:
                chosen.append((score, beam, choice))
            elif place < width:
                self._endings.append(ending)
            if len(chosen) == width:
                break
        self._endings.sort(key=lambda ending: -ending.rank)
        del self._endings[width:]
        if not chosen or self._is_over(chosen[0][0], self._beams[0].sequence.num_output + 1):
            return self._finish(scheduler, self._endings)
        self._go_on(chosen, scheduler)
        return None

    def cancel(self, scheduler: Scheduler) -> Result:
        """End the search where it is: the best of its beams, as far as they have come.

        Endings that it has found are no answer, for a beam might still have come before them.
        """
        beams = [self._whole(beam, FinishReason.CANCELLED) for beam in self._beams]
        return self._finish(scheduler, sorted(beams, key=lambda ending: -ending.rank))

    def fail(self, scheduler: Scheduler, error: RequestError) -> Result:
        """End a search that cannot go on."""
        best = self._whole(self._beams[0], FinishReason.ERROR)
        return replace(self._finish(scheduler, [best]), error=error)

    def _finish(self, scheduler: Scheduler, endings: Sequence[_Ending]) -> Result:
        for beam in self._beams:
            scheduler.remove(beam.sequence)
        self._beams = []
        best, *others = [self._result(ending) for ending in endings[: self.request.params.n]]
        others = [replace(other, index=index + 1) for index, other in enumerate(others)]
        return replace(best, alternatives=tuple(others))

    def _of(self, sequence: SequenceState) -> _Beam:
        return next(beam for beam in self._beams if beam.sequence is sequence)

    def _ending(self, score: float, beam: _Beam, choice: Choice) -> _Ending | None:
        """The ending that a continuation is, if it is one."""
        params = self.request.params
        token, output = choice.token, beam.sequence.tokens[beam.sequence.num_prompt :]
        tokens = (*output, token)
        finish: FinishReason | None = None
        if token in params.stop_token_ids:
            finish, (text, _) = FinishReason.STOP, self._read(output)
        elif token in self._eos_ids and not params.ignore_eos:
            finish, (text, _) = FinishReason.EOS, self._read(output)
        else:
            text, is_stopped = self._read(tokens)
            if is_stopped or (beam.matcher is not None and _is_last(beam.matcher, token)):
                finish = FinishReason.STOP
            elif len(tokens) == params.max_tokens:
                finish = FinishReason.LENGTH
            elif len(beam.sequence.tokens) + 1 >= self._ctx_len:
                finish = FinishReason.CONTEXT
        if finish is None:
            return None
        rank = score / len(tokens) ** params.length_penalty
        return _Ending(rank, tokens, text, (*beam.logprobs, choice), finish)

    def _whole(self, beam: _Beam, reason: FinishReason) -> _Ending:
        tokens = tuple(beam.sequence.tokens[beam.sequence.num_prompt :])
        rank = beam.score / max(len(tokens), 1) ** self.request.params.length_penalty
        return _Ending(rank, tokens, self._read(tokens)[0], beam.logprobs, reason)

    def _is_over(self, best: float, length: int) -> bool:
        params = self.request.params
        if len(self._endings) < params.beam_width:
            return False
        if params.early_stopping:
            return True
        return bool(self._endings[-1].rank >= best / length**params.length_penalty)

    def _go_on(self, chosen: Sequence[tuple[float, _Beam, Choice]], scheduler: Scheduler) -> None:
        used: set[_Beam] = set()
        beams = []
        for score, beam, choice in chosen:
            sequence = beam.sequence
            matcher = beam.matcher.fork() if beam.matcher else None
            if beam in used:
                self._num_made += 1
                name = f"{self.request.id}/beam{self._num_made}"
                sequence = scheduler.fork(beam.sequence, name)
            used.add(beam)
            if matcher is not None:
                matcher.accept(choice.token)
            beams.append(_Beam(sequence, score, (*beam.logprobs, choice), matcher))
        for beam in self._beams:
            if beam not in used:
                scheduler.remove(beam.sequence)
        # Tokens come last: until here a sequence and its copies are the same.
        for beam in beams:
            beam.sequence.tokens.append(beam.logprobs[-1].token)
            beam.sequence.is_parked = False
        self._beams = beams

    def _read(self, tokens: Sequence[int]) -> tuple[str, bool]:
        """The text of an output, up to a stop string where one counts, and whether one does."""
        if self._text is None:
            return "", False
        params = self.request.params
        detokenizer = self._text.detokenizer(
            self.request.prompt, skip_special_tokens=params.skip_special_tokens
        )
        num_free = max(params.min_tokens - 1, 0)
        text = detokenizer.push(tokens[:num_free])
        stops = StopMatcher(params.stop)
        text += stops.push(detokenizer.push(tokens[num_free:]))
        if not stops.is_stopped:
            text += stops.flush() + detokenizer.flush()
        return text, stops.is_stopped

    def _result(self, ending: _Ending) -> Result:
        ended_at = time.perf_counter()
        started_at = self.started_at or ended_at
        first_at = self._first_at or ended_at
        params = self.request.params
        return Result(
            request_id=self.request.id,
            prompt=self.request.prompt,
            token_ids=ending.tokens,
            text=ending.text,
            finish=ending.finish,
            timings=Timings(
                started_at - self._added_at, first_at - started_at, ended_at - first_at
            ),
            logprobs=None if params.logprobs is None else ending.logprobs,
            prompt_logprobs=(
                None if params.prompt_logprobs is None else tuple(self.prompt_logprobs)
            ),
            cumulative_logprob=sum(choice.logprob or 0.0 for choice in ending.logprobs),
            num_cached_tokens=self.num_cached,
        )


def _is_last(matcher: Matcher, token: int) -> bool:
    ahead = matcher.fork()
    ahead.accept(token)
    return ahead.is_finished
