"""``/tokenize`` and ``/detokenize``: a model's tokens, by themselves."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from pydantic import Field, model_validator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from qeff.apps.server.body import size_of
from qeff.apps.server.errors import bad_request
from qeff.apps.server.large import beside
from qeff.apps.server.openai.chat_shapes import JsonObject, Messages, Tools
from qeff.apps.server.openai.conversation import template_messages, template_tools
from qeff.apps.server.openai.sampling_fields import Body, TokenId
from qeff.apps.server.question import Question, prompt_of
from qeff.apps.server.routing import Router
from qeff.apps.server.state import serving
from qeff.generate import SamplingParams

router = Router("tokens")
MAX_TOKENS = 1_000_000
MAX_CHARACTERS = 2_000_000
Words = Annotated[str, Field(max_length=MAX_CHARACTERS)]


class TokenizeRequest(Body):
    """A text, or a conversation."""

    model: str | None = None
    prompt: Words | None = None
    content: Words | None = None  # llama.cpp's name of prompt
    messages: Messages | None = None
    tools: Tools | None = None
    chat_template_kwargs: JsonObject | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _has_one(self) -> TokenizeRequest:
        given = [one for one in (self.prompt, self.content, self.messages) if one is not None]
        if len(given) != 1:
            raise ValueError("give one of prompt and messages")
        return self


class DetokenizeRequest(Body):
    """Token ids."""

    model: str | None = None
    tokens: Annotated[list[TokenId], Field(max_length=MAX_TOKENS, fail_fast=True)]


@router.post("/tokenize", TokenizeRequest)
async def tokenize(body: TokenizeRequest, request: Request) -> Response:
    """The token ids of a text or of a conversation."""
    async with serving(request).models.use(body.model) as served:
        if body.messages is not None:
            ids = await prompt_of(served, await _question(body.messages, body, request))
        else:
            text = body.prompt if body.prompt is not None else body.content or ""
            ids = await served.encode_soon(text, add_special_tokens=body.add_special_tokens)
        answer = {"count": len(ids), "max_model_len": served.ctx_len, "tokens": ids}
        if body.return_token_strs:
            answer["token_strs"] = [served.token_text(token) for token in ids]
        return await beside(size_of(request.scope), JSONResponse, answer)


async def _question(messages: Messages, body: TokenizeRequest, request: Request) -> Question:
    """The conversation as the chat route would ask it, so that its tokens are the same."""
    size = size_of(request.scope)
    return Question(
        messages=await beside(size, template_messages, messages),
        params=SamplingParams(),
        tools=template_tools(body.tools or ()),
        template_args=body.chat_template_kwargs or {},
        add_generation_prompt=body.add_generation_prompt,
        size=size,
    )


@router.post("/detokenize", DetokenizeRequest)
async def detokenize(body: DetokenizeRequest, request: Request) -> dict[str, Any]:
    """The text of token ids."""
    async with serving(request).models.use(body.model) as served:
        for token in body.tokens:
            if token >= served.vocab_size:
                raise bad_request(f"Token {token} is not in the model's vocabulary.", "tokens")
        text = await asyncio.to_thread(served.decode, body.tokens, skip_special_tokens=False)
        return {"prompt": text, "content": text}
