"""Paths and what answers them: the one table that the application and its document are made of.

A body is read into its shape before a route sees it; what does not fit is refused in one sentence.
Knows nothing of what routes do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from qeff.apps.server.body import size_of, value_of
from qeff.apps.server.invalid import invalid
from qeff.apps.server.large import beside

if TYPE_CHECKING:
    from pydantic import BaseModel

JSON = "application/json"
EVENTS = "text/event-stream"

Answering = Callable[..., Awaitable[Response | dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Operation:
    """A method of a path.

    Args:
        method: ``GET`` or ``POST``.
        path: With names of its parts in braces, as Starlette writes them.
        answer: Takes the body where there is one, the request, and the named parts of the path.
        shape: Of the body; None takes none.
        media: What the answer may be.
        tag: The part of the server that it belongs to.
        is_shown: Whether the document tells of it.
    """

    method: str
    path: str
    answer: Answering
    shape: type[BaseModel] | None
    media: tuple[str, ...]
    tag: str
    is_shown: bool

    async def respond(self, request: Request) -> Response:
        """The response to a request."""
        if self.shape is None:
            given = await self.answer(request, **request.path_params)
        else:
            scope = request.scope
            body = await beside(size_of(scope), _fitted, self.shape, value_of(scope))
            given = await self.answer(body, request, **request.path_params)
        return given if isinstance(given, Response) else JSONResponse(given)


class Router:
    """The operations of one part of the server.

    Args:
        tag: Its name in the document.
        is_shown: Whether the document tells of it.
    """

    def __init__(self, tag: str, *, is_shown: bool = True) -> None:
        self.operations: list[Operation] = []
        self._tag = tag
        self._is_shown = is_shown

    def get(self, path: str, *, media: str = JSON) -> Callable[[Answering], Answering]:
        """Answers GET."""
        return self._add("GET", path, None, (media,))

    def post(
        self, path: str, shape: type[BaseModel], *, streams: bool = False
    ) -> Callable[[Answering], Answering]:
        """Answers POST with a body of a shape; ``streams`` where an answer may be events."""
        return self._add("POST", path, shape, (JSON, EVENTS) if streams else (JSON,))

    def _add(
        self, method: str, path: str, shape: type[BaseModel] | None, media: tuple[str, ...]
    ) -> Callable[[Answering], Answering]:
        def add(answer: Answering) -> Answering:
            self.operations.append(
                Operation(method, path, answer, shape, media, self._tag, self._is_shown)
            )
            return answer

        return add


def _fitted(shape: type[BaseModel], value: Any) -> BaseModel:
    from pydantic import ValidationError

    try:
        return shape.model_validate(value)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise invalid(found, value) from None
