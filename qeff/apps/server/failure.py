"""The bodies of errors, for the OpenAPI document: in OpenAI's shape and in Anthropic's."""

from __future__ import annotations

from typing import Literal

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
DESCRIPTIONS = {
    "4XX": "The request cannot be served; the message says why.",
    "5XX": "The server cannot answer; where it may later, Retry-After says when.",
}
