"""An engine in a thread of its own, for callers that live in an event loop.

Requests may come from any loop and any thread; what a request gives goes to the loop that asked for
it. A reader that is slow holds nobody up: its pieces wait for it. Knows nothing of servers.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeVar

from qeff.core.errors import OptionTypeError, QeffError, RequestError
from qeff.generate.engine import Engine, Prompt
from qeff.generate.outputs import combine
from qeff.generate.request import Delta, Request, Result, SamplingParams
from qeff.generate.runner import Stats

Answer = TypeVar("Answer")


@dataclass(slots=True)
class _Reader:
    """Where the pieces of one request go, and how many of its results are still to come."""

    loop: asyncio.AbstractEventLoop
    num_left: int
    queue: asyncio.Queue[Delta | BaseException] = field(default_factory=asyncio.Queue)

    def put(self, item: Delta | BaseException) -> None:
        _post(self.loop, [(self, item)])


class AsyncEngine:
    """Runs an engine's steps while there is work, and sleeps while there is none.

    The engine belongs to the thread from here on; it is closed with this object.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._readers: dict[str, _Reader] = {}  # touched by the thread alone
        self._jobs: deque[Callable[[], None]] = deque()
        self._has_news = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="qeff-engine", daemon=True)
        self._thread.start()

    async def __aenter__(self) -> AsyncEngine:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.close)

    @property
    def text(self) -> object:
        """The engine's tokenizer, which may be used from any thread."""
        return self._engine.text

    @property
    def is_closed(self) -> bool:
        """Whether nothing more can be asked: it was closed, or broke down."""
        return self._is_closed

    def close(self) -> None:
        """Cancel what runs, end the thread and close the engine."""
        with self._has_news:
            self._is_closed = True
            self._has_news.notify()
        self._thread.join()

    async def stats(self) -> Stats:
        """What the engine has done, as of between two steps."""
        return await self._ask(lambda: self._engine.stats)

    async def cancel(self, request_id: str) -> None:
        """End a request; its reader gets what was made of it."""
        await self._ask(lambda: self._cancel(request_id))

    async def stream(
        self, prompt: Prompt, params: SamplingParams | None = None
    ) -> AsyncIterator[Delta]:
        """Follow one request; leaving the loop over it cancels it."""
        request = self._engine.request(prompt, params)
        if request.params.num_choices > request.params.n:
            raise RequestError("the best of several outputs cannot be streamed", "use generate")
        reader = await self._begin(request)
        num_left = _num_results(request.params)
        try:
            while num_left:
                item = await reader.queue.get()
                if isinstance(item, BaseException):
                    raise item
                if item.result is not None and item.result.error is not None:
                    raise item.result.error
                num_left -= item.result is not None
                yield item
        finally:
            if num_left:
                self._tell(lambda: self._cancel(request.id))

    async def generate(
        self, prompts: Sequence[Prompt], params: SamplingParams | None = None
    ) -> list[Result]:
        """Run all prompts to their ends; results in their order."""
        if isinstance(prompts, str):
            raise OptionTypeError("prompts must be a list of prompts, not one text")
        requests = [self._engine.request(prompt, params) for prompt in prompts]
        answers = [asyncio.ensure_future(self._whole(request)) for request in requests]
        try:
            return await asyncio.gather(*answers)
        finally:  # where one has failed, nobody waits for the others
            for answer in answers:
                answer.cancel()

    async def _whole(self, request: Request) -> Result:
        reader = await self._begin(request)
        results: list[Result] = []
        try:
            while len(results) < _num_results(request.params):
                item = await reader.queue.get()
                if isinstance(item, BaseException):
                    raise item
                if item.result is not None:
                    if item.result.error is not None:
                        raise item.result.error
                    results.append(item.result)
        finally:
            if len(results) < _num_results(request.params):
                self._tell(lambda: self._cancel(request.id))
        return combine(results, request.params.n)

    # ---- in the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._work()
        finally:  # closed, or an error that is none of a request's: nobody may wait for more
            with self._has_news:
                self._is_closed = True
                jobs, self._jobs = self._jobs, deque()
            for job in jobs:
                job()
            self._fail(_closed())
            self._engine.close()

    def _wait_for_work(self) -> bool:
        with self._has_news:
            while not (self._jobs or self._is_closed or self._engine.has_work):
                self._has_news.wait()
            return not self._is_closed

    def _work(self) -> None:
        with self._has_news:
            jobs, self._jobs = self._jobs, deque()
        for job in jobs:
            job()
        try:
            deltas = self._engine.step()
        except QeffError as error:
            self._fail(error)
            return
        self._deliver(deltas)

    def _deliver(self, deltas: Sequence[Delta]) -> None:
        """Give a step's deltas to their readers; a loop is woken once for all of them."""
        mail: dict[asyncio.AbstractEventLoop, list[_Letter]] = {}
        for delta in deltas:
            reader = self._readers.get(delta.request_id)
            if reader is None:
                continue
            mail.setdefault(reader.loop, []).append((reader, delta))
            reader.num_left -= delta.result is not None
            if not reader.num_left:
                del self._readers[delta.request_id]
        for loop, letters in mail.items():
            _post(loop, letters)

    def _add(self, request: Request, reader: _Reader) -> None:
        self._engine.add(request)
        self._readers[request.id] = reader

    def _cancel(self, request_id: str) -> None:
        reader = self._readers.pop(request_id, None)
        for delta in self._engine.end(request_id):
            if reader is not None:
                reader.put(delta)

    def _drop(self, request_id: str, reader: _Reader) -> None:
        """End a request if it is this reader's; it may never have been added."""
        if self._readers.get(request_id) is reader:
            self._cancel(request_id)

    def _fail(self, error: BaseException) -> None:
        """Nothing that runs can go on: every reader is told why."""
        for request_id, reader in list(self._readers.items()):
            self._engine.cancel(request_id)
            reader.put(error)
        self._readers.clear()

    # ---- in the callers ------------------------------------------------------------------------

    async def _begin(self, request: Request) -> _Reader:
        """Add a request; it is ended again when its caller is cancelled meanwhile."""
        reader = _Reader(asyncio.get_running_loop(), _num_results(request.params))
        try:
            await self._ask(lambda: self._add(request, reader))
        except asyncio.CancelledError:
            self._tell(lambda: self._drop(request.id, reader))
            raise
        return reader

    def _tell(self, job: Callable[[], None]) -> bool:
        """Have a job run between two steps; False when there will be no more."""
        with self._has_news:
            if not self._is_closed:
                self._jobs.append(job)
                self._has_news.notify()
            return not self._is_closed

    async def _ask(self, job: Callable[[], Answer]) -> Answer:
        """Run a job between two steps and wait for what it returns or raises."""
        future: Future[Answer] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return  # whoever asked was cancelled
            try:
                future.set_result(job())
            except QeffError as error:
                future.set_exception(error)
            finally:  # whatever else happened ends the thread; nobody may wait for it
                if not future.done():
                    future.set_exception(_closed())

        if not self._tell(run):
            raise _closed()
        return await asyncio.wrap_future(future)


_Letter = tuple[_Reader, Delta | BaseException]


def _post(loop: asyncio.AbstractEventLoop, letters: Sequence[_Letter]) -> None:
    """Have a loop give letters to its readers; a closed one has nobody left to read them."""
    with suppress(RuntimeError):  # what it says when it is closed, which it may be at any moment
        loop.call_soon_threadsafe(_put_all, letters)


def _put_all(letters: Sequence[_Letter]) -> None:
    for reader, item in letters:
        reader.queue.put_nowait(item)


def _num_results(params: SamplingParams) -> int:
    """How many results a request gives: a beam search puts its outputs into one."""
    return 1 if params.beam_width > 1 else params.num_choices


def _closed() -> RequestError:
    return RequestError("the engine was closed")
