"""What a request for a chat completion may hold, as OpenAI documents it, with vLLM's additions.

Unknown fields are ignored, wrong types are refused. Knows nothing of models or of what is made of
the fields.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from qeff.apps.server.openai.sampling_fields import MAX_WHOLE, Body, SamplingFields

MAX_MESSAGES = 10_000
MAX_TOOLS = 512
NAME_PATTERN = r"^[A-Za-z0-9_.-]{1,128}$"

JsonObject = dict[str, Any]
FunctionName = Annotated[str, Field(pattern=NAME_PATTERN)]


class TextPart(Body):
    """Text as a part of a message."""

    type: Literal["text"]
    text: str


class RefusalPart(Body):
    """What an assistant refused to say, as a part of its message."""

    type: Literal["refusal"]
    refusal: str


class OtherPart(Body):
    """A picture, sound or file; accepted by the shape so that the answer can say what is wrong."""

    type: Literal["image_url", "input_image", "input_audio", "audio_url", "video_url", "file"]


Part = Annotated[TextPart | RefusalPart | OtherPart, Field(discriminator="type")]
Content = str | Annotated[list[Part], Field(fail_fast=True)]


class CalledFunction(Body):
    """The function of a call; the arguments are JSON text."""

    name: str
    arguments: str = ""


class Call(Body):
    """A call that an assistant made."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class SystemMessage(Body):
    """What the model is told about its task."""

    role: Literal["system", "developer"]
    content: Content
    name: str | None = None


class UserMessage(Body):
    """What a person said."""

    role: Literal["user"]
    content: Content
    name: str | None = None


class AssistantMessage(Body):
    """What the model answered."""

    role: Literal["assistant"]
    content: Content | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Call] | None = None


class ToolMessage(Body):
    """What a tool gave back."""

    role: Literal["tool", "function"]
    content: Content | None = None
    tool_call_id: str | None = None
    name: str | None = None


Message = Annotated[
    SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]
Messages = Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]


class Function(Body):
    """A function that may be called; the parameters are a JSON schema."""

    name: FunctionName
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class Tool(Body):
    """A tool that the model may use."""

    type: Literal["function"]
    function: Function


Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS)]


class NamedFunction(Body):
    """The name of a function."""

    name: str


class NamedChoice(Body):
    """The one function that has to be called."""

    type: Literal["function"]
    function: NamedFunction


class AllowedTools(Body):
    """Some of the tools, and whether one of them has to be called."""

    mode: Literal["auto", "required"]
    tools: list[NamedChoice]


class AllowedChoice(Body):
    """A choice among some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoice = (
    Literal["none", "auto", "required"]
    | Annotated[NamedChoice | AllowedChoice, Field(discriminator="type")]
)


class StreamOptions(Body):
    """What a stream holds besides the answer."""

    include_usage: bool | None = None


class JsonSchema(Body):
    """A named JSON schema."""

    name: str | None = None
    description: str | None = None
    schema_: Annotated[JsonObject | bool | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextFormat(Body):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(Body):
    """A JSON object; llama.cpp's servers take a schema beside it."""

    type: Literal["json_object"]
    schema_: Annotated[JsonObject | None, Field(alias="schema")] = None


class JsonSchemaFormat(Body):
    """JSON that is valid under a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")
]


class StructuredOutputs(Body):
    """vLLM's name for what an output has to fit; one of the fields."""

    json_: Annotated[JsonObject | str | None, Field(alias="json")] = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


class StructuredFields(Body):
    """What an output has to fit, by the names of vLLM and llama.cpp; one of the fields."""

    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonObject | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    grammar: str | None = None  # llama.cpp's
    json_schema: JsonObject | None = None  # llama.cpp's


class ChatRequest(SamplingFields, StructuredFields):
    """The body of POST /v1/chat/completions."""

    model: str | None = None
    messages: Messages
    max_tokens: Annotated[int, Field(ge=1, le=MAX_WHOLE)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_WHOLE)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: JsonObject | None = None
    user: Any = None
    metadata: Any = None  # ignored, as is user
