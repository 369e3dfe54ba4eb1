"""The messages of a chat request as a model's template takes them.

Parts of a content become one text, calls get their arguments as values. What this model cannot
take, as pictures and sound, is refused in one sentence: nothing is ever fetched. Knows nothing of
tokens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from qeff.apps.server.errors import bad_request
from qeff.apps.server.openai.chat_shapes import (
    AssistantMessage,
    Content,
    Message,
    OtherPart,
    TextPart,
    Tool,
    ToolMessage,
)

ROLES = {"developer": "system", "function": "tool"}


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages in the form that chat templates are written for."""
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def template_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The tools in the form that chat templates are written for."""
    found = []
    for tool in tools:
        function = tool.function.model_dump(exclude_none=True, exclude={"strict"})
        function.setdefault("description", "")
        function.setdefault("parameters", {"type": "object", "properties": {}})
        found.append({"type": "function", "function": function})
    return found


def read_arguments(text: str) -> Any:
    """The arguments of a call as values; as they stand where they are no JSON object."""
    if not text.strip():
        return {}
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return values if isinstance(values, dict) else text


def joined(content: Content | None, where: str) -> str:
    """The text of a content; its parts stand on lines of their own."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for index, part in enumerate(content):
        if isinstance(part, OtherPart):
            raise no_media(part.type, f"{where}.content[{index}]")
        texts.append(part.text if isinstance(part, TextPart) else part.refusal)
    return "\n".join(texts)


def no_media(kind: str, where: str) -> Exception:
    """The refusal of a part that is no text."""
    return bad_request(f"This model takes text only, and a part of type {kind!r} is none.", where)


def _message(message: Message, where: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "role": ROLES.get(message.role, message.role),
        "content": joined(message.content, where),
    }
    if message.name is not None:
        found["name"] = message.name
    if isinstance(message, ToolMessage) and message.tool_call_id is not None:
        found["tool_call_id"] = message.tool_call_id
    if isinstance(message, AssistantMessage):
        found |= _answered(message)
    return found


def _answered(message: AssistantMessage) -> dict[str, Any]:
    """What only an answer of the model has: thoughts and calls."""
    found: dict[str, Any] = {}
    if not message.content and message.refusal:
        found["content"] = message.refusal
    thoughts = message.reasoning_content or message.reasoning
    if thoughts:
        found["reasoning_content"] = thoughts
    if message.tool_calls:
        found["tool_calls"] = [
            {
                "id": call.id or "",
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": read_arguments(call.function.arguments),
                },
            }
            for call in message.tool_calls
        ]
    return found
