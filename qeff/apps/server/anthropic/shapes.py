"""What a request for a message may hold, as Anthropic documents it.

Unknown fields are ignored, wrong types are refused. Knows nothing of models or of what is made of
the fields.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from qeff.apps.server.openai.chat_shapes import MAX_MESSAGES, MAX_TOOLS, FunctionName, JsonObject
from qeff.apps.server.openai.sampling_fields import (
    MAX_STRINGS,
    MAX_WHOLE,
    Body,
    SamplingFields,
    Some,
)


class TextBlock(Body):
    """Text."""

    type: Literal["text"]
    text: str


class ThinkingBlock(Body):
    """What the model thought."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class HiddenThinkingBlock(Body):
    """Thoughts that only their maker can read; they are left out."""

    type: Literal["redacted_thinking"]


class ToolUseBlock(Body):
    """A call that the model made."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: JsonObject


class OtherBlock(Body):
    """A picture or a document; accepted by the shape so that the answer can say what is wrong."""

    type: Literal["image", "document", "search_result", "container_upload"]


class ToolResultBlock(Body):
    """What a tool gave back."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[Annotated[TextBlock | OtherBlock, Field(discriminator="type")]] | None = (
        None
    )
    is_error: bool | None = None


Block = Annotated[
    TextBlock | ThinkingBlock | HiddenThinkingBlock | ToolUseBlock | ToolResultBlock | OtherBlock,
    Field(discriminator="type"),
]


class Message(Body):
    """A turn of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class Tool(Body):
    """A function that may be called; the input is a JSON schema."""

    type: Literal["custom"] | None = None
    name: FunctionName
    description: str | None = None
    input_schema: JsonObject
    strict: bool | None = None


class ToolChoice(Body):
    """How tools are to be used; the name goes with the type ``tool``."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    """Whether the model thinks before it answers, where its template can be told."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = None


class JsonFormat(Body):
    """JSON that is valid under a schema."""

    type: Literal["json_schema"]
    schema_: Annotated[JsonObject, Field(alias="schema")]


class OutputConfig(Body):
    """How the answer is to be."""

    effort: str | None = None
    format: JsonFormat | None = None


class Conversation(SamplingFields):
    """The body of POST /v1/messages/count_tokens, and what it has in common with a message."""

    model: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: str | list[TextBlock] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: JsonObject | None = None


class MessageRequest(Conversation):
    """The body of POST /v1/messages."""

    max_tokens: Annotated[int, Field(ge=1, le=MAX_WHOLE)]
    stop_sequences: Annotated[list[Some], Field(max_length=MAX_STRINGS)] | None = None
    stream: bool | None = None
    metadata: Any = None
