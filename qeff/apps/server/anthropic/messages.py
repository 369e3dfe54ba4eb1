"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's protocol."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from qeff.apps.server.anthropic.conversation import question_of
from qeff.apps.server.anthropic.message_answer import MessageAnswer
from qeff.apps.server.anthropic.shapes import Conversation, MessageRequest
from qeff.apps.server.body import size_of
from qeff.apps.server.exchange import Exchange
from qeff.apps.server.large import beside
from qeff.apps.server.question import prompt_of
from qeff.apps.server.routing import Router
from qeff.apps.server.state import serving
from qeff.apps.server.tally import Tally
from qeff.apps.server.typed_events import Asking

router = Router("messages")


@router.post("/v1/messages", MessageRequest, streams=True)
async def create_message(body: MessageRequest, request: Request) -> Response:
    """Answer a conversation."""
    question = await beside(size_of(request.scope), question_of, body, request)
    asking = Asking(request, body.model, question, _answer)
    return await asking.reply(streams=bool(body.stream))


@router.post("/v1/messages/count_tokens", Conversation)
async def count_tokens(body: Conversation, request: Request) -> Response:
    """How many tokens a conversation has, with its tools."""
    question = await beside(size_of(request.scope), question_of, body, request)
    async with serving(request).models.use(body.model) as served:
        return JSONResponse({"input_tokens": len(await prompt_of(served, question))})


def _answer(asking: Exchange) -> MessageAnswer:
    question = asking.question
    tally = Tally(len(asking.asked.prompt))
    return MessageAnswer(
        asking.served, tally, question.params.stop, is_single=question.tool_use.is_single
    )
