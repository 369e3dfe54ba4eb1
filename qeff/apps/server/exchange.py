"""One question and its answer: finds the model, takes a place in the queue, follows the steps.

Everything that is held for an answer is given back when the exchange ends, however it ends. Knows
nothing of the shapes of requests and answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

from starlette.requests import Request

from qeff.apps.server.admission import Place
from qeff.apps.server.errors import bad_request
from qeff.apps.server.question import Question, asked_of
from qeff.apps.server.served import Asked, Progress, Served
from qeff.apps.server.state import serving


@dataclass(slots=True)
class Exchange:
    """A question that was let in."""

    served: Served
    question: Question
    asked: Asked
    place: Place

    async def steps(self) -> AsyncIterator[Progress]:
        """What each step adds to the answer; leaving the loop ends it."""
        async with aclosing(self.served.follow(self.asked)) as steps:  # type: ignore[type-var]
            async for progress in steps:
                self.place.started()
                yield progress


@asynccontextmanager
async def exchange(
    request: Request, model: str | None, question: Question
) -> AsyncIterator[Exchange]:
    """Ask a model; the answer is to be read inside."""
    state = serving(request)
    async with state.models.use(model) as served:
        asked = await asked_of(served, question, state.config)
        count = asked.params.num_choices
        if count > state.config.max_outputs:
            most = state.config.max_outputs
            raise bad_request(f"A request has at most {most} outputs here, not {count}.", "n")
        num_tokens = len(asked.prompt) + count * (asked.params.max_tokens or 0)
        async with state.admission.place(num_tokens, count) as place:
            yield Exchange(served, question, asked, place)
