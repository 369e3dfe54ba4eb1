"""POST /v1/responses: OpenAI's responses, without memory of earlier ones."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from qeff.apps.server.departure import while_connected
from qeff.apps.server.exchange import Exchange, exchange
from qeff.apps.server.failure import STREAMS
from qeff.apps.server.openai.responses_answer import ResponseAnswer
from qeff.apps.server.openai.responses_input import has_logprobs, question_of
from qeff.apps.server.openai.responses_shapes import ResponsesRequest
from qeff.apps.server.question import Question
from qeff.apps.server.sse import event, respond
from qeff.apps.server.tally import Tally

router = APIRouter(tags=["responses"])


@router.post("/v1/responses", response_model=None, responses=STREAMS)
async def create_response(body: ResponsesRequest, request: Request) -> Response:
    """Answer an input; nothing is stored."""
    question = question_of(body, request)
    if body.stream:
        return await respond(request, _events(request, body, question))
    return JSONResponse(await while_connected(request, _whole(request, body, question)))


def _answer(body: ResponsesRequest, asking: Exchange) -> ResponseAnswer:
    return ResponseAnswer(
        asking.served,
        Tally(len(asking.asked.prompt)),
        int(time.time()),
        _repeated(body, asking.question),
        has_logprobs=has_logprobs(body),
        is_single=asking.question.tool_use.is_single,
    )


def _repeated(body: ResponsesRequest, question: Question) -> dict[str, Any]:
    """What a response says of its request."""
    shown = {"reasoning", "text", "tool_choice", "tools"}
    given = body.model_dump(include=shown, by_alias=True, exclude_none=True)
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata if isinstance(body.metadata, dict) else {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "reasoning": {"effort": None, "summary": None, **given.get("reasoning", {})},
        "temperature": question.params.temperature,
        "text": {"format": {"type": "text"}, **given.get("text", {})},
        "tool_choice": given.get("tool_choice", "auto"),
        "tools": given.get("tools", []),
        "top_logprobs": body.top_logprobs or 0,
        "top_p": question.params.top_p,
        "user": body.user,
    }


async def _whole(request: Request, body: ResponsesRequest, question: Question) -> dict[str, Any]:
    async with exchange(request, body.model, question) as asking:
        answer = _answer(body, asking)
        async for progress in asking.steps():
            answer.step(progress)
        return answer.whole()


async def _events(
    request: Request, body: ResponsesRequest, question: Question
) -> AsyncIterator[bytes]:
    async with exchange(request, body.model, question) as asking:
        answer = _answer(body, asking)
        unsent = answer.begin()
        async for progress in asking.steps():
            unsent += answer.step(progress)
            if unsent:
                yield _written(unsent)
            unsent = []
        yield _written(answer.end())


def _written(events: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(event(one, one["type"]) for one in events)
