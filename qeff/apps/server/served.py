"""One opened model, as all protocols ask it: a question in, the progress of its outputs out.

Splits chat answers into their fields, counts what happens for the metrics, and ends what takes too
long. Knows nothing of HTTP and of any protocol's words but OpenAI's reasons of an end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from qeff.apps.server.errors import (
    SERVER_ERROR,
    ApiError,
    bad_request,
    draining,
    from_qeff,
    timed_out,
)
from qeff.apps.server.journal import Journal
from qeff.apps.server.large import LARGE, beside
from qeff.apps.server.meters import Meter
from qeff.core.errors import QeffError, RequestError
from qeff.generate import AsyncEngine, Constraint, Delta, Engine, Request, Result, SamplingParams
from qeff.generate.chat import Message
from qeff.generate.fields import Field, FieldSplitter, Piece
from qeff.generate.request import Choice, FinishReason
from qeff.generate.runner import Stats
from qeff.generate.text import Text
from qeff.generate.token_bytes import TokenBytes

NUM_LOOKED_AT = 32  # tokens at the end of a prompt, where a template may begin the reasoning
LONG_TEXT = 4096  # characters from which on text is tokenised beside the event loop
FINISHES = {
    FinishReason.LENGTH: "length",
    FinishReason.CONTEXT: "length",
    FinishReason.STOP: "stop",
    FinishReason.EOS: "stop",
    FinishReason.CANCELLED: "abort",
    FinishReason.ERROR: "abort",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One question to a model, whatever protocol it came by.

    Args:
        prompt: Token ids.
        params: How tokens are chosen and when to stop.
        constraint: What the output must follow.
        constraint_field: The field of the request that says so.
        splits: Whether the answer is split into content, reasoning and calls.
        schemas: The parameter schemas of the tools that may be called, by name.
        priority: Lower numbers run first.
        cache_salt: Cached prefixes are shared among equal salts alone.
        deadline_s: Seconds after which the answer is given up; None waits for ever.
    """

    prompt: tuple[int, ...]
    params: SamplingParams
    constraint: Constraint | None = None
    constraint_field: str | None = None
    splits: bool = False
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    priority: int = 0
    cache_salt: str = ""
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """What one step added to one output of the answer."""

    index: int
    text: str  # raw text of this step
    pieces: tuple[Piece, ...]  # the same split by field; empty when not asked for
    choices: tuple[Choice, ...]  # one per token, log-probabilities where asked for
    result: Result | None = None  # set with the last one of this output
    finish: str | None = None  # "stop", "length", "tool_calls" or "abort"; set with result


class Served:
    """An opened model.

    Args:
        name: What clients call it.
        engine: Belongs to this object from here on.
        meter: Where what happens is counted.
        journal: Where it is told.
        created: When the model was made, in seconds since 1970.
    """

    def __init__(
        self, name: str, engine: Engine, meter: Meter, journal: Journal, created: int
    ) -> None:
        assert engine.text is not None, "a server speaks text"
        self.name = name
        self.text: Text = engine.text
        self.created = created
        self.meter = meter
        self._journal = journal
        self.ctx_len = engine.session.caps.ctx_len
        self.vocab_size = engine.session.caps.vocab_size
        self.max_sequences = engine.session.caps.max_sequences
        self.num_blocks = engine.stats.num_free_blocks  # nothing runs yet: all of them are free
        self._is_closing = False
        self._eos_ids = engine.eos_ids
        self._engine = AsyncEngine(engine)
        special = {self.text.tokenizer.token_to_id(m) for m in self.text.answer_format.markers}
        self._keeps_special = bool(special & self.text.special_ids)

    @property
    def is_broken(self) -> bool:
        """Whether the engine ended by a mistake of ours: it has to be opened again."""
        return self._engine.is_closed and not self._is_closing

    async def close(self) -> None:
        """Cancel what runs, telling those who wait for it, and give memory and threads back."""
        self._is_closing = True
        await asyncio.to_thread(self._engine.close)

    # ---- text ----------------------------------------------------------------------------------

    def chat_ids(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_args: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        beginning: str = "",
    ) -> list[int]:
        """Token ids of a conversation and of the answer's beginning; blocks: see ``encode_soon``.

        What no context could hold is refused before it is tokenised, plain texts even before they
        are rendered, which holds others up.
        """
        contents = (message.get("content") for message in messages)
        plain = sum(len(content) for content in contents if isinstance(content, str))
        self.check_length(plain, "messages")
        rendered = self.text.render_chat(
            messages,
            tools=tools,
            variables=template_args,
            add_generation_prompt=add_generation_prompt,
        )
        self.check_length(len(rendered) + len(beginning), "messages")
        ids = self.encode(rendered, add_special_tokens=False)
        return ids + self.encode(beginning, add_special_tokens=False)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; blocks: see ``encode_soon`` for the event loop."""
        return self.text.encode(text, add_special_tokens=add_special_tokens)

    async def encode_soon(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, long ones made beside the event loop."""
        if LONG_TEXT <= len(text) < LARGE:
            return await asyncio.to_thread(self.encode, text, add_special_tokens=add_special_tokens)
        return await beside(len(text), self.encode, text, add_special_tokens=add_special_tokens)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids."""
        return self.text.decode(ids, skip_special_tokens=skip_special_tokens)

    def token_text(self, token: int) -> str:
        """One token as text; what is no whole character shows as the replacement character."""
        return self.token_bytes(token).decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token, also where they are part of a character."""
        return self._bytes[token]

    @cached_property
    def _bytes(self) -> TokenBytes:
        return TokenBytes(self.text.tokenizer, self.text.special_ids)

    # ---- limits --------------------------------------------------------------------------------

    def check_length(self, num_characters: int, param: str) -> None:
        """Refuse text that no tokens of this model could fit into the context, without a try."""
        if num_characters <= self.ctx_len:  # every token may be a character: that is sure to fit
            return
        if num_characters > self.ctx_len * self._longest_token:
            raise bad_request(
                f"The text has {num_characters} characters, which is more than the context of this"
                f" model, {self.ctx_len} tokens, can hold.",
                param,
                "context_length_exceeded",
            )

    @cached_property
    def _longest_token(self) -> int:
        """Characters of the longest token; one in pieces of bytes has fewer."""
        return max(len(token) for token in self.text.tokenizer.get_vocab())

    def check_prompt(self, ids: Sequence[int], param: str) -> None:
        """Refuse a prompt that leaves no room for an output, or that is none."""
        if not ids:
            raise bad_request("The prompt is empty.", param)
        if len(ids) >= self.ctx_len:
            raise bad_request(
                f"The prompt has {len(ids)} tokens, and the context of this model holds"
                f" {self.ctx_len} with the output.",
                param,
                "context_length_exceeded",
            )
        if max(ids) >= self.vocab_size:
            raise bad_request(
                f"The prompt holds token {max(ids)}, and the model has {self.vocab_size} tokens.",
                param,
            )

    def check_params(self, params: SamplingParams) -> None:
        """Refuse settings that name tokens which the model does not have."""
        named = [("stop_token_ids", token) for token in params.stop_token_ids]
        named += [("logit_bias", token) for token, _ in params.logit_bias]
        for name, token in named:
            if token >= self.vocab_size:
                raise bad_request(
                    f"{name} names token {token}, and the model has {self.vocab_size} tokens.",
                    name,
                )

    def fitted(
        self, params: SamplingParams, num_prompt_tokens: int, most: int | None = None
    ) -> SamplingParams:
        """The settings with as many tokens of those wanted as there is room for."""
        room = max(1, self.ctx_len - num_prompt_tokens)
        for number in (params.max_tokens, most):
            room = room if number is None else min(room, number)
        return replace(params, max_tokens=room, min_tokens=min(params.min_tokens, room))

    # ---- answers -------------------------------------------------------------------------------

    async def follow(self, asked: Asked) -> AsyncIterator[Progress]:
        """What each step adds to each output; leaving the loop cancels the request.

        Of several outputs of which the best are given, all come at the end, in one go.
        """
        params = asked.params
        if asked.splits and self._keeps_special:
            params = replace(params, skip_special_tokens=False)
        request = Request(
            asked.prompt,
            params,
            priority=asked.priority,
            cache_salt=asked.cache_salt,
            constraint=asked.constraint,
        )
        splitters = _Splitters(self.text, asked) if asked.splits else None
        timing = self.meter.start(len(asked.prompt))
        try:
            if asked.constraint is not None:  # compiled here, so that the engine need not
                await self._compile(asked.constraint, asked.constraint_field)
            steps = self._deltas(request, asked.deadline_s)
            async with aclosing(steps) as deltas:  # type: ignore[type-var]
                async for delta in deltas:
                    progress = _progress(delta, splitters)
                    timing.note(
                        progress.index, len(progress.choices), progress.result, progress.finish
                    )
                    if progress.result is not None:
                        self._tell(progress.result)
                    yield progress
        except RequestError:
            if self._is_closing:  # no fault of the request's
                raise draining() from None
            if self.is_broken:
                raise ApiError(
                    500, "The engine broke down; the log says why.", SERVER_ERROR
                ) from None
            raise
        finally:
            timing.end()

    async def _compile(self, constraint: Constraint, field: str | None) -> None:
        try:
            await asyncio.to_thread(self.text.matcher, constraint, self.vocab_size, self._eos_ids)
        except QeffError as error:
            raise from_qeff(error, field) from None

    def _tell(self, result: Result) -> None:
        """Note the end of an output in the line of the request, and its text where that may be."""
        is_first = result.index == 0
        self._journal.note(
            prompt_tokens=len(result.prompt) if is_first else 0,
            output_tokens=len(result.token_ids),
        )
        if self._journal.with_prompts:
            prompt = self.decode(result.prompt, skip_special_tokens=False)
            self._journal.said(self.name, prompt, result.text)

    async def stats(self) -> Stats:
        """What the engine has done, as of between two steps."""
        return await self._engine.stats()

    async def _deltas(self, request: Request, deadline_s: float | None) -> AsyncIterator[Delta]:
        source = self._best(request) if _is_best_of(request) else self._engine.stream(request)
        deadline = _Deadline(deadline_s, lambda: self._engine.cancel(request.id))
        try:
            async with aclosing(source) as deltas:  # type: ignore[type-var]
                async for delta in deltas:
                    if deadline.has_passed and delta.finish is FinishReason.CANCELLED:
                        raise timed_out(deadline_s or 0.0)
                    yield delta
        finally:
            deadline.forget()

    async def _best(self, request: Request) -> AsyncIterator[Delta]:
        (best,) = await self._engine.generate([request])
        for index, result in enumerate((best, *best.alternatives)):
            if result.error is not None:
                raise result.error
            logprobs = result.logprobs or ()
            own = replace(result, alternatives=(), index=index)
            yield Delta(request.id, result.token_ids, result.text, own, index, logprobs)


class _Deadline:
    """Ends a request when its time is over; cheaper than a time limit around every step."""

    def __init__(self, seconds: float | None, end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.has_passed = False
        self._end = end
        self._ending: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        self._timer = None if seconds is None else loop.call_later(seconds, self._pass)

    def forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _pass(self) -> None:
        self.has_passed = True
        self._ending = asyncio.get_running_loop().create_task(self._end())


class _Splitters:
    """A splitter for each output, made when its first piece comes."""

    def __init__(self, text: Text, asked: Asked) -> None:
        self._format = text.answer_format
        self._schemas = asked.schemas
        self._ending = text.decode(asked.prompt[-NUM_LOOKED_AT:], skip_special_tokens=False)
        self._each: dict[int, FieldSplitter] = {}
        self._with_calls: set[int] = set()

    def split(self, index: int, text: str, *, is_last: bool) -> tuple[Piece, ...]:
        splitter = self._each.get(index)
        if splitter is None:
            splitter = FieldSplitter(self._format, self._schemas, self._ending)
            self._each[index] = splitter
        pieces = [*splitter.push(text), *(splitter.flush() if is_last else ())]
        if any(piece.field is Field.CALL for piece in pieces):
            self._with_calls.add(index)
        return tuple(pieces)

    def has_calls(self, index: int) -> bool:
        return index in self._with_calls


def _progress(delta: Delta, splitters: _Splitters | None) -> Progress:
    choices = delta.logprobs or tuple(Choice(token) for token in delta.token_ids)
    pieces: tuple[Piece, ...] = ()
    if splitters is not None:
        pieces = splitters.split(delta.index, delta.text, is_last=delta.result is not None)
    finish = None
    if delta.result is not None:
        finish = FINISHES[delta.result.finish]
        if finish == "stop" and splitters is not None and splitters.has_calls(delta.index):
            finish = "tool_calls"
    return Progress(delta.index, delta.text, pieces, choices, delta.result, finish)


def _is_best_of(request: Request) -> bool:
    """Whether all outputs come at the end: a search has them in one result."""
    return request.params.num_choices > request.params.n or request.params.beam_width > 1
