"""What a request to OpenAI's responses may hold, as far as a server without memory can serve it.

Unknown fields are ignored, wrong types are refused. Knows nothing of models or of what is made of
the fields.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from qeff.apps.server.openai.chat_shapes import (
    MAX_MESSAGES,
    MAX_TOOLS,
    FunctionName,
    JsonObject,
    StructuredFields,
)
from qeff.apps.server.openai.sampling_fields import MAX_WHOLE, Body, SamplingFields


class TextPart(Body):
    """Text of a person, of the model, or of a tool."""

    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text"]
    text: str


class RefusalPart(Body):
    """What the model refused to say."""

    type: Literal["refusal"]
    refusal: str


class OtherPart(Body):
    """A picture, sound or file; accepted by the shape so that the answer can say what is wrong."""

    type: Literal["input_image", "input_file", "input_audio"]


Part = Annotated[TextPart | RefusalPart | OtherPart, Field(discriminator="type")]


class MessageItem(Body):
    """A message; also without a type, as the short form has it."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Part]


class CallItem(Body):
    """A call that the model made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class OutputItem(Body):
    """What a called function gave back."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | list[Part]


class ReasoningItem(Body):
    """What the model thought before an answer."""

    type: Literal["reasoning"]
    summary: list[TextPart] | None = None
    content: list[TextPart] | None = None


class ReferenceItem(Body):
    """An item that another answer held; there is no memory to find it in."""

    type: Literal["item_reference"]
    id: str


def _kind(item: Any) -> Any:
    if isinstance(item, dict):
        return item.get("type", "message")
    return getattr(item, "type", "message")  # an item that was read already


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[OutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[ReferenceItem, Tag("item_reference")],
    Discriminator(_kind),
]


class FunctionTool(Body):
    """A function that may be called; the parameters are a JSON schema."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class NamedChoice(Body):
    """The one function that has to be called."""

    type: Literal["function"]
    name: str


class AllowedChoice(Body):
    """Some of the tools, and whether one of them has to be called."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[NamedChoice]


ToolChoice = (
    Literal["none", "auto", "required"]
    | Annotated[NamedChoice | AllowedChoice, Field(discriminator="type")]
)


class PlainFormat(Body):
    """Any text, or any JSON object."""

    type: Literal["text", "json_object"]


class SchemaFormat(Body):
    """JSON that is valid under a schema."""

    type: Literal["json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: Annotated[JsonObject, Field(alias="schema")]
    strict: bool | None = None


class TextSettings(Body):
    """How the text of the answer is to be."""

    format: Annotated[PlainFormat | SchemaFormat, Field(discriminator="type")] | None = None
    verbosity: str | None = None


class Reasoning(Body):
    """How much is thought before an answer; models that know efforts are told."""

    effort: str | None = None
    summary: str | None = None


class ResponsesRequest(SamplingFields, StructuredFields):
    """The body of POST /v1/responses."""

    model: str | None = None
    input: str | Annotated[list[Item], Field(min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=MAX_WHOLE)] | None = None
    stream: bool | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextSettings | None = None
    reasoning: Reasoning | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None
    metadata: Any = None
    user: Any = None
    chat_template_kwargs: JsonObject | None = None
