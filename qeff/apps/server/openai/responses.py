"""POST /v1/responses: OpenAI's responses, without memory of earlier ones."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from qeff.apps.server.body import size_of
from qeff.apps.server.exchange import Exchange
from qeff.apps.server.large import beside
from qeff.apps.server.openai.responses_answer import ResponseAnswer
from qeff.apps.server.openai.responses_input import has_logprobs, question_of
from qeff.apps.server.openai.responses_shapes import ResponsesRequest
from qeff.apps.server.question import Question
from qeff.apps.server.routing import Router
from qeff.apps.server.tally import Tally
from qeff.apps.server.typed_events import Asking

router = Router("responses")


@router.post("/v1/responses", ResponsesRequest, streams=True)
async def create_response(body: ResponsesRequest, request: Request) -> Response:
    """Answer an input; nothing is stored."""
    make = partial(_answer, body)
    question = await beside(size_of(request.scope), question_of, body, request)
    asking = Asking(request, body.model, question, make)
    return await asking.reply(streams=bool(body.stream))


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
