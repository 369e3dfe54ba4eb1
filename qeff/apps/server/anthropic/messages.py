"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's protocol."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from qeff.apps.server.anthropic.conversation import question_of
from qeff.apps.server.anthropic.message_answer import MessageAnswer
from qeff.apps.server.anthropic.shapes import Conversation, MessageRequest
from qeff.apps.server.exchange import Exchange
from qeff.apps.server.failure import STREAMS
from qeff.apps.server.question import prompt_of
from qeff.apps.server.state import serving
from qeff.apps.server.tally import Tally
from qeff.apps.server.typed_events import Asking

router = APIRouter(tags=["messages"])


@router.post("/v1/messages", response_model=None, responses=STREAMS)
async def create_message(body: MessageRequest, request: Request) -> Response:
    """Answer a conversation."""
    asking = Asking(request, body.model, question_of(body, request), _answer)
    return await asking.reply(streams=bool(body.stream))


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
