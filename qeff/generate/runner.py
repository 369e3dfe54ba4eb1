"""The requests of an engine at work: each call of ``step`` runs the session once for all of them.

Plans the step, runs it, chooses tokens, and says what each request got. Knows nothing of who asked
and where the answers go.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from qeff.core.errors import RequestError
from qeff.generate.admission import check_request, make_search, make_tasks
from qeff.generate.ahead import Ahead
from qeff.generate.beam import BeamSearch
from qeff.generate.plan import Entry, Plan
from qeff.generate.request import Choice, Delta, FinishReason, Request, Result
from qeff.generate.sampling import expand, not_finite, score
from qeff.generate.scheduler import Scheduler
from qeff.generate.speculation.draft import NO_DRAFT, Draft
from qeff.generate.task import Task
from qeff.generate.verify import Walk, verify
from qeff.runtime.session import Session, StepOutput

if TYPE_CHECKING:
    from qeff.generate.drafting import Drafting
    from qeff.generate.speculation.governor import SpeculationStats
    from qeff.generate.steady import Steady
    from qeff.generate.text import Text


@dataclass(frozen=True, slots=True)
class Stats:
    """What the engine has done, and how full it is."""

    num_steps: int
    num_step_tokens: int  # tokens run: prompts, drafts and recomputed ones included
    num_output_tokens: int
    num_reused_tokens: int  # tokens of prompts that were in the cache already
    num_preemptions: int
    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_kept_blocks: int  # of the free ones, those kept for what they hold
    session_s: float  # time spent inside the session
    speculation: SpeculationStats | None


@dataclass(slots=True)
class Tally:
    """The steps that were run."""

    num_steps: int = 0
    num_tokens: int = 0
    session_s: float = 0.0
    last_s: float = 0.0

    def note(self, plan: Plan, seconds: float) -> None:
        """One step more."""
        self.num_steps += 1
        self.num_tokens += len(plan.batch.tokens)
        self.session_s += seconds
        self.last_s = seconds


class Runner:
    """Tasks and searches, and the session that they share.

    Args:
        session: Runs the steps; its cache is reserved already.
        scheduler: Plans them.
        text: The model's tokenizer, if there is one.
        eos_ids: Tokens that end a text.
        drafting: Guesses tokens ahead, if anything does.
    """

    def __init__(
        self,
        session: Session,
        scheduler: Scheduler,
        text: Text | None,
        eos_ids: frozenset[int],
        drafting: Drafting | None,
    ) -> None:
        self._session = session
        self._scheduler = scheduler
        self._text = text
        self._eos_ids = eos_ids
        self._drafting = drafting
        self._tasks: dict[str, Task] = {}  # by sequence
        self._requests: dict[str, list[Task]] = {}  # those that run, by request
        self._searches: dict[str, BeamSearch] = {}  # by request
        self._tally = Tally()
        self._num_output_tokens = 0
        self._num_reused_tokens = 0
        self._num_constrained = 0  # tasks whose constraint may force tokens
        self._ahead: Ahead | None = None  # a step that is on its way already

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    @property
    def stats(self) -> Stats:
        return Stats(
            num_steps=self._tally.num_steps,
            num_step_tokens=self._tally.num_tokens,
            num_output_tokens=self._num_output_tokens,
            num_reused_tokens=self._num_reused_tokens,
            num_preemptions=self._scheduler.num_preemptions,
            num_running=len(self._scheduler.running),
            num_waiting=len(self._scheduler.waiting),
            num_free_blocks=self._scheduler.cache.blocks.num_free,
            num_kept_blocks=self._scheduler.cache.blocks.num_kept,
            session_s=self._tally.session_s,
            speculation=self._drafting.report() if self._drafting else None,
        )

    def running(self) -> list[str]:
        """The ids of all requests that are not done."""
        return [*self._requests, *self._searches]

    def is_running(self, request_id: str) -> bool:
        """Whether any output of a request is still to come."""
        return request_id in self._requests or request_id in self._searches

    def add(self, request: Request) -> None:
        """Queue a request; refuses one that cannot be served."""
        if self.is_running(request.id):
            raise RequestError(f"a request with the id {request.id!r} is running already")
        check_request(request, self._session.caps, self._text)
        if request.params.beam_width > 1:
            search = make_search(request, self._session.caps, self._text, self._eos_ids)
            self._searches[request.id] = search
            self._scheduler.add(search.sequences[0])
            return
        tasks = make_tasks(request, self._session.caps, self._text, self._eos_ids)
        self._requests[request.id] = tasks
        for task in tasks:
            self._num_constrained += _is_forcing(task, self._session)
            self._tasks[task.sequence.id] = task
            self._scheduler.add(task.sequence)

    def end(self, request_id: str) -> list[Delta]:
        """End a request at once; the last delta of each of its outputs that was still running."""
        if request_id in self._searches:
            search = self._searches.pop(request_id)
            result = search.cancel(self._scheduler)
            return [Delta(request_id, result.token_ids, result.text, result)]
        deltas: list[Delta] = []
        for task in list(self._requests.get(request_id, ())):
            rest, result = self._finish(task, FinishReason.CANCELLED)
            deltas.append(Delta(request_id, (), rest, result, index=task.index))
        return deltas

    def step(self) -> list[Delta]:
        """Run one step; what it gave, in the order of its sequences."""
        if self._ahead is not None:
            return self._land(self._ahead)
        steady = self._scheduler.steady
        rests = self._drafting is None or (steady is not None and self._drafting.rests())
        plan = self._scheduler.schedule(self._propose(rests=rests))
        if plan is None:
            return []
        if plan.is_steady and steady is not None and self._overlaps(steady):
            num_left = min(self._tasks[one.sequence.id].num_tokens_left for one in plan.entries)
            return self._land(Ahead.begin(self._session, steady, plan, num_left))
        output = self._run(plan)
        if self._drafting is not None and not rests:
            self._drafting.note_step(len(plan.batch.tokens), self._tally.last_s)
        if steady is not None and plan.is_steady and steady.is_chosen:
            assert output.tokens is not None, "the session chooses, but gave no tokens"
            steady.advance(plan)
            return self._accept(plan, output.tokens)
        beams: list[Entry] = []
        walks: list[Walk] = []
        for entry in plan.entries:
            task = self._tasks.get(entry.sequence.id)
            if task is None:
                beams.append(entry)
            else:
                walks.append(Walk(entry, task))
        deltas = self._walk(walks, output)
        return [*deltas, *self._search(beams, output.logits)] if beams else deltas

    # ---- one token at a time, or as many as a draft had right ----------------------------------

    def _accept(self, plan: Plan, tokens: np.ndarray) -> list[Delta]:
        """The usual step: one token for each sequence, and the session has chosen them."""
        deltas = []
        for entry, token in zip(plan.entries, tokens.tolist(), strict=True):
            task = self._tasks.get(entry.sequence.id)
            if task is None:  # it ended while the step was on its way
                continue
            if token < 0:
                rest, result = self._finish(task, FinishReason.ERROR, not_finite())
                deltas.append(Delta(task.request.id, (), rest, result, task.index))
                continue
            delta, finish = task.accept(Choice(token))
            if finish is not None:
                rest, result = self._finish(task, finish)
                delta = delta._replace(text=delta.text + rest, result=result)
            deltas.append(delta)
            self._num_output_tokens += 1
        return deltas

    def _overlaps(self, steady: Steady) -> bool:
        """Whether steps may be begun before the last one's tokens are known."""
        is_free = self._drafting is None and not self._num_constrained
        return is_free and self._session.caps.overlaps and steady.is_chosen

    def _land(self, now: Ahead) -> list[Delta]:
        """Take the tokens of a step on its way, after the one behind it was begun."""
        started_at = time.perf_counter()
        entries = now.plan.entries
        gone = {one.sequence for one in entries if one.sequence.id not in self._tasks}
        self._ahead = None
        is_same = self._scheduler.steady is now.steady
        following = now.follow(self._session) if is_same else None
        tokens = now.begun.result().tokens
        assert tokens is not None, "the session chooses, but gave no tokens"
        self._tally.note(now.plan, time.perf_counter() - started_at)
        now.steady.advance(now.plan, gone)
        deltas = self._accept(now.plan, tokens)
        self._ahead = following if self._tasks else None  # else nobody waits for it
        return deltas

    def _propose(self, *, rests: bool) -> dict[str, Draft] | None:
        """What constraints force, and where nothing does, what a proposer that is awake guesses."""
        if rests and not self._num_constrained:
            return None
        drafts: dict[str, Draft] = {}
        tasks: list[Task] = []
        for sequence in self._scheduler.due():
            task = self._tasks.get(sequence.id)
            if task is None:
                continue
            draft = task.forced() if self._num_constrained else NO_DRAFT
            if draft.tokens:
                drafts[sequence.id] = draft
            else:
                tasks.append(task)
        if not rests and tasks and self._drafting is not None:
            num_others = len(self._scheduler.running) - len(tasks)
            num_others += sum(map(len, drafts.values()))
            drafts |= self._drafting.propose(tasks, num_others)
        return drafts

    def _run(self, plan: Plan) -> StepOutput:
        started_at = time.perf_counter()
        for entry in () if plan.is_steady else plan.entries:
            name = entry.sequence.id
            owner = self._tasks.get(name) or self._searches[name.rpartition("/")[0]]
            if owner.started_at is None:
                owner.started_at = started_at
                owner.num_cached = entry.sequence.num_reused
                self._num_reused_tokens += owner.num_cached
        if plan.copies:
            self._session.copy_blocks(plan.copies)
        output = self._session.step(plan.batch)
        self._tally.note(plan, time.perf_counter() - started_at)
        return output

    def _walk(self, walks: list[Walk], output: StepOutput) -> list[Delta]:
        taken: dict[Walk, list[tuple[Delta, FinishReason | None]]] = {}

        def take(walk: Walk, choice: Choice) -> bool:
            delta, finish = walk.task.accept(choice)
            taken.setdefault(walk, []).append((delta, finish))
            return finish is None

        for walk in walks:
            if walk.entry.num_prompt_rows:
                _score_prompt(walk.task, walk.entry, output.logits)
        failed = verify([walk for walk in walks if walk.entry.is_due], output, take)
        if output.guesses is not None and self._drafting is not None:
            for walk in taken:
                self._drafting.note_guesses(walk.task, output.guesses[walk.entry.row(walk.node)])
        moves: list[tuple[int, int]] = []
        for walk in walks:
            if walk.entry.draft.tokens:
                self._learn(walk, output)
            moves.extend(self._scheduler.advance(walk.entry, walk.path))
        if moves:
            self._session.copy_rows(moves)
        deltas = [self._join(walk.task, pieces) for walk, pieces in taken.items()]
        for walk, error in failed.items():
            rest, result = self._finish(walk.task, FinishReason.ERROR, error)
            deltas.append(Delta(walk.task.request.id, (), rest, result, walk.task.index))
        return deltas

    def _learn(self, walk: Walk, output: StepOutput) -> None:
        draft = walk.entry.draft
        if draft.is_forced:
            walk.task.num_forced += len(walk.path)
            return
        assert self._drafting is not None, "a draft that nobody made"
        rows = {node: walk.entry.row(node) for node in draft.watched}
        if walk.entry.is_chosen and output.tokens is not None:
            likeliest = {node: int(output.tokens[row]) for node, row in rows.items()}
        else:
            likeliest = {node: int(np.argmax(output.logits[row])) for node, row in rows.items()}
        self._drafting.note_draft(walk.task, draft, walk.path, likeliest)

    def _join(self, task: Task, pieces: list[tuple[Delta, FinishReason | None]]) -> Delta:
        """What a step gave to a task, as one piece, and its end where it has come."""
        self._num_output_tokens += len(pieces)
        delta = pieces[0][0]
        for more, _ in pieces[1:]:
            delta = delta._replace(
                token_ids=delta.token_ids + more.token_ids,
                text=delta.text + more.text,
                logprobs=delta.logprobs + more.logprobs,
            )
        finish = pieces[-1][1]
        if finish is None:
            return delta
        rest, result = self._finish(task, finish)
        return delta._replace(text=delta.text + rest, result=result)

    def _finish(
        self, task: Task, reason: FinishReason, error: RequestError | None = None
    ) -> tuple[str, Result]:
        self._scheduler.remove(task.sequence)
        self._num_constrained -= _is_forcing(task, self._session)
        del self._tasks[task.sequence.id]
        running = self._requests[task.request.id]
        running.remove(task)
        if not running:
            del self._requests[task.request.id]
        if self._drafting:
            self._drafting.forget(task)
        return task.finish(reason, error)

    # ---- beams ---------------------------------------------------------------------------------

    def _search(self, entries: list[Entry], logits: np.ndarray) -> list[Delta]:
        due: dict[BeamSearch, list[Entry]] = {}
        for entry in entries:
            search = self._searches[entry.sequence.id.rpartition("/")[0]]
            if entry.num_prompt_rows:
                _score_prompt(search, entry, logits)
            self._scheduler.advance(entry)
            if entry.is_due:
                due.setdefault(search, []).append(entry)
        deltas = []
        for search, its_entries in due.items():
            try:
                result = self._expand(search, its_entries, logits)
            except RequestError as error:  # its constraint cannot be followed any further
                result = search.fail(self._scheduler, error)
            if result is not None:
                request_id = search.request.id
                del self._searches[request_id]
                self._num_output_tokens += len(result.token_ids)
                deltas.append(Delta(request_id, result.token_ids, result.text, result))
        return deltas

    def _expand(
        self, search: BeamSearch, entries: list[Entry], logits: np.ndarray
    ) -> Result | None:
        """Tell a search how its beams may go on; its result when it is over."""
        for entry in entries:
            row, place = search.row(entry.sequence), entry.row()
            (choices,) = expand(logits[place : place + 1], [row], search.num_expanded)
            search.note(entry.sequence, choices)
        return search.advance(self._scheduler) if search.is_ready else None


def _is_forcing(task: Task, session: Session) -> bool:
    """Whether tokens may be forced that need no step of their own."""
    return task.matcher is not None and session.caps.max_step_tokens > 1


def _score_prompt(owner: Task | BeamSearch, entry: Entry, logits: np.ndarray) -> None:
    """Add the log-probabilities of the tokens of a prompt that a step has run."""
    # A sequence that was pushed out computes its prompt again, and has some numbers already.
    first = len(owner.prompt_logprobs)
    num_known = first - (entry.sequence.num_computed + 1)
    if 0 <= num_known < entry.num_prompt_rows:
        stop = first - num_known + entry.num_prompt_rows
        rows = logits[entry.first_row + num_known : entry.first_row + entry.num_prompt_rows]
        num_top = owner.request.params.prompt_logprobs or 0
        owner.prompt_logprobs.extend(score(rows, owner.request.prompt[first:stop], num_top))
