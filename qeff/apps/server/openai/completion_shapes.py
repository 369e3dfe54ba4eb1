"""The request of ``/v1/completions``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from qeff.apps.server.openai.chat_shapes import StructuredFields
from qeff.apps.server.openai.sampling_fields import MAX_WHOLE, Body, SamplingFields, TokenId

MAX_PROMPTS = 1024
MAX_LOGPROBS = 20
MAX_TOKENS = 16  # where a request names no number, as OpenAI documents

TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]


class StreamOptions(Body):
    """What a stream tells besides the text."""

    include_usage: bool | None = None


class CompletionRequest(SamplingFields, StructuredFields):
    """Text to go on with; null is the same as leaving a field out."""

    prompt: (
        str
        | TokenIds
        | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
        | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
    )
    model: str | None = None
    max_tokens: Annotated[int, Field(ge=0, le=MAX_WHOLE)] | None = None
    best_of: Annotated[int, Field(ge=1, le=128)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    suffix: str | None = None

    def prompts(self) -> list[str | list[int]]:
        """Every prompt, as text or as token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)
