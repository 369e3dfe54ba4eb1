"""POST /v1/chat/completions: OpenAI's chat requests to questions, and the answers back."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from qeff.apps.server.body import size_of
from qeff.apps.server.departure import while_connected
from qeff.apps.server.errors import bad_request
from qeff.apps.server.exchange import Exchange, exchange
from qeff.apps.server.large import beside
from qeff.apps.server.openai.chat_answer import ChatAnswer
from qeff.apps.server.openai.chat_shapes import ChatRequest
from qeff.apps.server.openai.conversation import template_messages, template_tools
from qeff.apps.server.openai.response_format import fit_of
from qeff.apps.server.openai.sampling_fields import sampling_params
from qeff.apps.server.openai.tool_choice import tool_use
from qeff.apps.server.question import Question
from qeff.apps.server.routing import Router
from qeff.apps.server.sse import DONE, event, respond
from qeff.apps.server.state import cache_salt
from qeff.apps.server.tally import Tally

router = Router("chat")


@router.post("/v1/chat/completions", ChatRequest, streams=True)
async def create_chat_completion(body: ChatRequest, request: Request) -> Response:
    """Answer a conversation."""
    question = await beside(size_of(request.scope), question_of, body, request)
    if body.stream:
        return await respond(request, _events(request, body, question))
    return JSONResponse(await while_connected(request, _whole(request, body, question)))


def question_of(body: ChatRequest, request: Request) -> Question:
    """What a chat request asks."""
    tools = template_tools(body.tools or ())
    names = [tool["function"]["name"] for tool in tools]
    if body.top_logprobs and not body.logprobs:
        raise bad_request("top_logprobs needs logprobs to be true.", "top_logprobs")
    params = sampling_params(
        body,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    variables = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
    messages = template_messages(body.messages)
    beginning = _beginning(messages) if body.continue_final_message else ""
    return Question(
        messages=messages,
        params=params,
        tools=tools,
        strict=frozenset(tool.function.name for tool in body.tools or () if tool.function.strict),
        tool_use=tool_use(body.tool_choice, names, is_parallel=body.parallel_tool_calls),
        fit=fit_of(body, body.response_format),
        template_args=variables,
        add_generation_prompt=bool(beginning) or body.add_generation_prompt is not False,
        beginning=beginning,
        priority=body.priority or 0,
        cache_salt=cache_salt(request, body.cache_salt),
        size=size_of(request.scope),
    )


def _beginning(messages: list[dict[str, Any]]) -> str:
    """Take the last message off, which the answer goes on from."""
    if len(messages) < 2 or messages[-1]["role"] != "assistant":
        raise bad_request(
            "continue_final_message needs a last message of the assistant, and one before it.",
            "continue_final_message",
        )
    return str(messages.pop()["content"])


def _answer(body: ChatRequest, asking: Exchange) -> ChatAnswer:
    options = body.stream_options
    return ChatAnswer(
        asking.served,
        Tally(len(asking.asked.prompt)),
        int(time.time()),
        has_logprobs=bool(body.logprobs),
        has_usage=bool(options and options.include_usage),
        is_single=asking.question.tool_use.is_single,
    )


async def _whole(request: Request, body: ChatRequest, question: Question) -> dict[str, Any]:
    async with exchange(request, body.model, question) as asking:
        answer = _answer(body, asking)
        async for progress in asking.steps():
            answer.note(progress)
        return answer.whole()


async def _events(request: Request, body: ChatRequest, question: Question) -> AsyncIterator[bytes]:
    async with exchange(request, body.model, question) as asking:
        answer = _answer(body, asking)
        async for progress in asking.steps():
            chunks = b"".join(map(event, answer.chunks(progress)))
            if chunks:
                yield chunks
        yield b"".join(map(event, answer.last_chunks())) + DONE
