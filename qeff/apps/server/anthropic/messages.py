"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from qeff.apps.server.anthropic.conversation import question_of
from qeff.apps.server.anthropic.message_answer import MessageAnswer
from qeff.apps.server.anthropic.shapes import Conversation, MessageRequest
from qeff.apps.server.departure import while_connected
from qeff.apps.server.exchange import Exchange, exchange
from qeff.apps.server.failure import STREAMS
from qeff.apps.server.question import Question, prompt_of
from qeff.apps.server.sse import event, respond
from qeff.apps.server.state import serving
from qeff.apps.server.tally import Tally

router = APIRouter(tags=["messages"])


@router.post("/v1/messages", response_model=None, responses=STREAMS)
async def create_message(body: MessageRequest, request: Request) -> Response:
    """Answer a conversation."""
    question = question_of(body, request)
    if body.stream:
        return await respond(request, _events(request, body, question))
    return JSONResponse(await while_connected(request, _whole(request, body, question)))


@router.post("/v1/messages/count_tokens", response_model=None)
async def count_tokens(body: Conversation, request: Request) -> Response:
    """How many tokens a conversation has, with its tools."""
    question = question_of(body, request)
    async with serving(request).models.use(body.model) as served:
        return JSONResponse({"input_tokens": len(await prompt_of(served, question))})


def _answer(asking: Exchange) -> MessageAnswer:
    question = asking.question
    tally = Tally(len(asking.asked.prompt))
    return MessageAnswer(
        asking.served, tally, question.params.stop, is_single=question.tool_use.is_single
    )


async def _whole(request: Request, body: MessageRequest, question: Question) -> dict[str, Any]:
    async with exchange(request, body.model, question) as asking:
        answer = _answer(asking)
        async for progress in asking.steps():
            answer.step(progress)
        return answer.whole()


async def _events(
    request: Request, body: MessageRequest, question: Question
) -> AsyncIterator[bytes]:
    async with exchange(request, body.model, question) as asking:
        answer = _answer(asking)
        unsent = answer.begin()
        async for progress in asking.steps():
            unsent += answer.step(progress)
            if unsent:
                yield _written(unsent)
            unsent = []
        yield _written(answer.end())


def _written(events: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(event(one, one["type"]) for one in events)
