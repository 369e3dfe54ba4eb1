"""The bodies of errors, for the OpenAPI document: in OpenAI's shape and in Anthropic's."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel


class FailureDetail(BaseModel):
    """What went wrong, in OpenAI's words."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIFailure(BaseModel):
    """An error of every path but Anthropic's."""

    error: FailureDetail


class AnthropicDetail(BaseModel):
    """What went wrong, in Anthropic's words."""

    type: str
    message: str


class AnthropicFailure(BaseModel):
    """An error of Anthropic's paths."""

    type: Literal["error"]
    error: AnthropicDetail
    request_id: str | None = None


# Every path may refuse a request; a status of the hundred stands for all of them.
RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "model": OpenAIFailure | AnthropicFailure,
        "description": "The request cannot be served; the message says why.",
    },
    "5XX": {
        "model": OpenAIFailure | AnthropicFailure,
        "description": "The server cannot answer; where it may later, Retry-After says when.",
    },
}
# For paths that give a stream of events where the request asks for one.
STREAMS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer, as a whole or as a stream.",
        "content": {"application/json": {}, "text/event-stream": {}},
    }
}
