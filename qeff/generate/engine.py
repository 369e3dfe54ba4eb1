"""The engine: requests in, tokens and text out, by running a session step after step.

``add`` and ``step`` are the whole of it; ``stream`` and ``generate`` are loops over them. Without a
:class:`Text` it takes and gives token ids alone. One engine drives one session and is used from one
thread at a time. Knows nothing of graphs or devices.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING

from qeff.core.errors import OptionTypeError, RequestError, ResourceError
from qeff.generate.request import Delta, FinishReason, Request, Result, SamplingParams
from qeff.generate.sampling import sample
from qeff.generate.scheduler import Plan, Scheduler, num_blocks_for
from qeff.generate.task import Task
from qeff.runtime.session import Session, StepOutput

if TYPE_CHECKING:
    from qeff.generate.text import Text

Prompt = str | Sequence[int] | Request


@dataclass(frozen=True, slots=True)
class Stats:
    """What the engine has done, and how full it is."""

    num_steps: int
    num_step_tokens: int  # tokens run, prompts and recomputed ones included
    num_output_tokens: int
    num_preemptions: int
    num_running: int
    num_waiting: int
    num_free_blocks: int
    session_s: float  # time spent inside the session


class Engine:
    """Drives a session for any number of requests at once.

    Args:
        session: An opened session; the engine reserves its cache and closes it.
        text: The model's tokenizer; needed for text prompts, stop strings and text output.
        eos_ids: Tokens that end a text; the tokenizer's own when left out.
        num_blocks: Cache blocks to reserve; by default a full context for every sequence.
        max_step_tokens: Most tokens in one step; smaller keeps decodes quick beside long prompts.
    """

    def __init__(
        self,
        session: Session,
        text: Text | None = None,
        *,
        eos_ids: Sequence[int] | None = None,
        num_blocks: int | None = None,
        max_step_tokens: int | None = None,
    ) -> None:
        self.session = session
        self.text = text
        known = eos_ids if eos_ids is not None else text.eos_ids if text else ()
        self.eos_ids = frozenset(token for token in known if token < session.caps.vocab_size)
        self._scheduler = Scheduler(
            session.caps, _choose_num_blocks(session, num_blocks), max_step_tokens
        )
        session.reserve(self._scheduler.blocks.num_blocks)
        self._tasks: dict[str, Task] = {}
        self._mailboxes: dict[str, deque[Delta]] = {}  # for requests that somebody follows
        self._unread: list[Delta] = []  # for everything else: what the next step() returns
        self._num_steps = 0
        self._num_step_tokens = 0
        self._num_output_tokens = 0
        self._session_s = 0.0

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop what runs and close the session."""
        for request_id in list(self._tasks):
            self.cancel(request_id)
        self.session.close()

    @property
    def has_work(self) -> bool:
        return bool(self._tasks)

    @property
    def stats(self) -> Stats:
        return Stats(
            num_steps=self._num_steps,
            num_step_tokens=self._num_step_tokens,
            num_output_tokens=self._num_output_tokens,
            num_preemptions=self._scheduler.num_preemptions,
            num_running=len(self._scheduler.running),
            num_waiting=len(self._scheduler.waiting),
            num_free_blocks=self._scheduler.blocks.num_free,
            session_s=self._session_s,
        )

    def add(self, request: Request) -> str:
        """Queue a request and return its id; refuses one that cannot be served."""
        self._check(request)
        detokenizer = self.text.detokenizer(request.prompt) if self.text else None
        task = Task(request, self.eos_ids, self.session.caps.ctx_len, detokenizer)
        self._tasks[request.id] = task
        self._scheduler.add(task.sequence)
        return request.id

    def step(self) -> list[Delta]:
        """Run one step; what it gave to each request that nobody follows by a stream."""
        self._advance()
        unread, self._unread = self._unread, []
        return unread

    def cancel(self, request_id: str) -> Result | None:
        """End a request at once; what it has given so far, or None when it is not running."""
        task = self._tasks.get(request_id)
        if task is None:
            return None
        rest, result = self._finish(task, FinishReason.CANCELLED)
        if request_id in self._mailboxes:
            self._mailboxes[request_id].append(Delta(request_id, (), rest, result))
        return result

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Delta]:
        """Follow one request; giving the iterator up cancels it. Others go on beside it."""
        request = self.request(prompt, params)
        self.add(request)
        self._mailboxes[request.id] = deque()
        return self._follow(request.id)

    def generate(
        self, prompts: Sequence[Prompt], params: SamplingParams | None = None
    ) -> list[Result]:
        """Run all prompts to their ends, together as far as they fit; results in their order."""
        if isinstance(prompts, str):
            raise OptionTypeError("prompts must be a list of prompts, not one text")
        results: list[Result] = []
        added: list[str] = []
        try:
            for request in [self.request(prompt, params) for prompt in prompts]:
                added.append(self.add(request))
                self._mailboxes[request.id] = deque()
            for request_id in added:
                results.extend(delta.result for delta in self._follow(request_id) if delta.result)
        finally:
            for request_id in added:  # those that an error or an interrupt left behind
                self.cancel(request_id)
                self._mailboxes.pop(request_id, None)
        return results

    def request(self, prompt: Prompt, params: SamplingParams | None = None) -> Request:
        """A request from text, token ids, or a request that is one already."""
        if isinstance(prompt, Request):
            return prompt
        if isinstance(prompt, str):
            if self.text is None:
                raise RequestError("there is no tokenizer for a text prompt", "give token ids")
            prompt = self.text.encode(prompt)
        return Request(tuple(prompt), params or SamplingParams())

    def _check(self, request: Request) -> None:
        caps = self.session.caps
        if request.id in self._tasks:
            raise RequestError(f"a request with the id {request.id!r} is running already")
        if len(request.prompt) >= caps.ctx_len:
            raise RequestError(
                f"prompt has {len(request.prompt)} tokens, context is {caps.ctx_len}",
                "shorten the prompt, or compile with a larger context (raise --ctx-len)",
            )
        for token in (*request.prompt, *request.params.stop_token_ids):
            if token >= caps.vocab_size:
                raise RequestError(
                    f"token id {token} is not in the model's vocabulary of {caps.vocab_size}",
                    "the tokenizer does not belong to this model",
                )
        if request.params.stop and self.text is None:
            raise RequestError("stop strings need a tokenizer", "use stop_token_ids")

    def _follow(self, request_id: str) -> Iterator[Delta]:
        mailbox = self._mailboxes[request_id]
        try:
            while True:
                while mailbox:
                    delta = mailbox.popleft()
                    yield delta
                    if delta.result:
                        return
                self._advance()
        finally:
            self._mailboxes.pop(request_id, None)
            self.cancel(request_id)

    def _advance(self) -> None:
        plan = self._scheduler.schedule()
        if plan is None:
            return
        output = self._run(plan)
        tasks = [self._tasks[sequence.id] for sequence in plan.sampled]
        tokens = sample(output.logits, [task.row() for task in tasks])
        self._scheduler.advance(plan)
        for task, token in zip(tasks, tokens, strict=True):
            self._deliver(task, int(token))

    def _run(self, plan: Plan) -> StepOutput:
        started_at = time.perf_counter()
        for sequence, _ in plan.counts:
            task = self._tasks[sequence.id]
            task.started_at = task.started_at or started_at
        output = self.session.step(plan.batch)
        self._session_s += time.perf_counter() - started_at
        self._num_steps += 1
        self._num_step_tokens += len(plan.batch.tokens)
        return output

    def _deliver(self, task: Task, token: int) -> None:
        """Give a token to its request, and what comes of it to whoever follows the request."""
        delta, finish = task.accept(token)
        self._num_output_tokens += 1
        if finish is not None:
            rest, result = self._finish(task, finish)
            delta = replace(delta, text=delta.text + rest, result=result)
        self._mailboxes.get(delta.request_id, self._unread).append(delta)

    def _finish(self, task: Task, reason: FinishReason) -> tuple[str, Result]:
        self._scheduler.remove(task.sequence)
        del self._tasks[task.request.id]
        return task.finish(reason)


def _choose_num_blocks(session: Session, wanted: int | None) -> int:
    caps = session.caps
    each = num_blocks_for(caps.ctx_len, caps.block_len)
    chosen = wanted or each * caps.max_sequences
    if caps.max_blocks is not None:
        chosen = min(chosen, caps.max_blocks)
    if chosen < each:
        raise ResourceError(
            f"{chosen} cache blocks do not hold one context of {caps.ctx_len} tokens",
            f"reserve at least {each} blocks",
        )
    return chosen
