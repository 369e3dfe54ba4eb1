"""Answers that protocols tell in events of named types: whole, or event by event as they are made.

Anthropic's messages and OpenAI's responses are such. Knows nothing of what the events say.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from qeff.apps.server.departure import while_connected
from qeff.apps.server.exchange import Exchange, exchange
from qeff.apps.server.question import Question
from qeff.apps.server.served import Progress
from qeff.apps.server.sse import event, respond

Event = dict[str, Any]


class TypedAnswer(Protocol):
    """An answer that is being made; each event has its ``type``."""

    def begin(self) -> list[Event]: ...

    def step(self, progress: Progress) -> list[Event]: ...

    def end(self) -> list[Event]: ...

    def whole(self) -> dict[str, Any]: ...


class Asking:
    """One request: the model and the question, and what makes an answer of the exchange."""

    def __init__(
        self,
        request: Request,
        model: str | None,
        question: Question,
        make: Callable[[Exchange], TypedAnswer],
    ) -> None:
        self._request = request
        self._model = model
        self._question = question
        self._make = make

    async def reply(self, *, streams: bool) -> Response:
        """Ask, and answer as a stream or in one piece."""
        if streams:
            return await respond(self._request, self._events())
        return JSONResponse(await while_connected(self._request, self._whole()))

    async def _whole(self) -> dict[str, Any]:
        async with exchange(self._request, self._model, self._question) as asking:
            answer = self._make(asking)
            async for progress in asking.steps():
                answer.step(progress)
            return answer.whole()

    async def _events(self) -> AsyncIterator[bytes]:
        async with exchange(self._request, self._model, self._question) as asking:
            answer = self._make(asking)
            unsent = answer.begin()
            async for progress in asking.steps():
                unsent += answer.step(progress)
                if unsent:
                    yield _written(unsent)
                unsent = []
            yield _written(answer.end())


def _written(events: Iterable[Event]) -> bytes:
    return b"".join(event(one, one["type"]) for one in events)
