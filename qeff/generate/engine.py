"""The engine: requests in, tokens and text out, by running a session step after step.

``add`` and ``step`` are the whole of it; ``stream`` and ``generate`` are loops over them. Without a
:class:`Text` it takes and gives token ids alone. One engine drives one session and is used from one
thread at a time. Knows nothing of graphs or devices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from qeff.core.errors import OptionTypeError, RequestError, ResourceError
from qeff.generate.cache_blocks import num_blocks_for
from qeff.generate.outputs import combine
from qeff.generate.request import Delta, Request, Result, SamplingParams
from qeff.generate.runner import Runner, Stats
from qeff.generate.scheduler import Scheduler
from qeff.runtime.session import Session

if TYPE_CHECKING:
    from qeff.generate.drafting import Drafting
    from qeff.generate.text import Text

Prompt = str | Sequence[int] | Request


class Engine:
    """Drives a session for any number of requests at once.

    Args:
        session: An opened session; the engine reserves its cache and closes it.
        text: The model's tokenizer; needed for text prompts, stop strings and text output.
        eos_ids: Tokens that end a text; the tokenizer's own when left out.
        num_blocks: Cache blocks to reserve; by default a full context for every sequence.
        max_step_tokens: Most tokens in one step; smaller keeps decodes quick beside long prompts.
        reuse_prefixes: Take over what other requests have computed of an equal beginning.
        drafting: Guesses tokens ahead, which are verified; the engine closes it.
    """

    def __init__(
        self,
        session: Session,
        text: Text | None = None,
        *,
        eos_ids: Sequence[int] | None = None,
        num_blocks: int | None = None,
        max_step_tokens: int | None = None,
        reuse_prefixes: bool = True,
        drafting: Drafting | None = None,
    ) -> None:
        self.session = session
        self.text = text
        known = eos_ids if eos_ids is not None else text.eos_ids if text else ()
        self.eos_ids = frozenset(token for token in known if token < session.caps.vocab_size)
        self._drafting = drafting
        scheduler = Scheduler(
            session.caps,
            _choose_num_blocks(session, num_blocks),
            max_step_tokens,
            reuses_prefixes=reuse_prefixes,
        )
        session.reserve(scheduler.cache.blocks.num_blocks)
        self._runner = Runner(session, scheduler, text, self.eos_ids, drafting)
        self._mailboxes: dict[str, deque[Delta]] = {}  # for requests that somebody follows
        self._unread: list[Delta] = []  # for everything else: what the next step() returns
        self._is_closed = False

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
        """Drop what runs and close the session; nothing can be added any more."""
        self._is_closed = True
        for request_id in self._runner.running():
            self.cancel(request_id)
        if self._drafting:
            self._drafting.close()
        self.session.close()

    @property
    def has_work(self) -> bool:
        return self._runner.has_work

    @property
    def stats(self) -> Stats:
        return self._runner.stats

    def add(self, request: Request) -> str:
        """Queue a request and return its id; refuses one that cannot be served."""
        if self._is_closed:
            raise RequestError("the engine was closed", "open another one")
        self._runner.add(request)
        return request.id

    def step(self) -> list[Delta]:
        """Run one step; what it gave to each request that nobody follows by a stream."""
        self._advance()
        unread, self._unread = self._unread, []
        return unread

    def is_running(self, request_id: str) -> bool:
        """Whether any output of a request is still to come."""
        return self._runner.is_running(request_id)

    def cancel(self, request_id: str) -> Result | None:
        """End a request at once; what it has given so far, or None when it is not running."""
        deltas = self.end(request_id)
        if request_id in self._mailboxes:
            self._mailboxes[request_id].extend(deltas)
        results = [delta.result for delta in deltas if delta.result]
        return combine(results, len(results)) if results else None

    def end(self, request_id: str) -> list[Delta]:
        """End a request at once; the last delta of each of its outputs that was still running."""
        return self._runner.end(request_id)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Delta]:
        """Follow one request; giving the iterator up cancels it. Others go on beside it."""
        request = self.request(prompt, params)
        if request.params.num_choices > request.params.n:
            raise RequestError("the best of several outputs cannot be streamed", "use generate")
        self.add(request)
        self._mailboxes[request.id] = deque()
        pieces = self._follow(request.id)
        next(pieces)  # from here on it ends its request, also where nobody reads from it
        return pieces

    def generate(
        self, prompts: Sequence[Prompt], params: SamplingParams | None = None
    ) -> list[Result]:
        """Run all prompts to their ends, together as far as they fit; results in their order."""
        if isinstance(prompts, str):
            raise OptionTypeError("prompts must be a list of prompts, not one text")
        results: list[Result] = []
        added: list[Request] = []
        try:
            for request in [self.request(prompt, params) for prompt in prompts]:
                self.add(request)
                added.append(request)
                self._mailboxes[request.id] = deque()
            for request in added:
                outputs = [delta.result for delta in self._follow(request.id) if delta.result]
                results.append(combine(outputs, request.params.n))
        finally:
            for request in added:  # those that an error or an interrupt left behind
                self.cancel(request.id)
                self._mailboxes.pop(request.id, None)
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

    def _follow(self, request_id: str) -> Iterator[Delta]:
        """An empty delta, then those of a request; the request ends with the iterator."""
        mailbox = self._mailboxes[request_id]
        try:
            yield Delta(request_id, (), "")
            while True:
                while mailbox:
                    delta = mailbox.popleft()
                    if delta.result and delta.result.error:
                        raise delta.result.error
                    yield delta
                if not self._runner.is_running(request_id):
                    return
                self._advance()
        finally:
            self._mailboxes.pop(request_id, None)
            self.cancel(request_id)

    def _advance(self) -> None:
        for delta in self._runner.step():
            self._mailboxes.get(delta.request_id, self._unread).append(delta)


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
