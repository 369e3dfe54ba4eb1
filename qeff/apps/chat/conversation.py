"""What was said so far: the messages of a chat, which can be written to a file and read again.

Messages are plain JSON values in the form that chat templates take. Knows nothing of models.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from qeff.core.errors import RequestError
from qeff.generate.fields import Answer, ToolCall

Message = dict[str, Any]


class Conversation:
    """Messages in their order; a system message, if there is one, comes first."""

    def __init__(self, system: str | None = None) -> None:
        self.messages: list[Message] = []
        self.set_system(system)

    def set_system(self, text: str | None) -> None:
        """Say who the model is from here on; None or nothing takes the system message away."""
        if self.messages and self.messages[0]["role"] == "system":
            del self.messages[0]
        if text:
            self.messages.insert(0, {"role": "system", "content": text})

    def add(self, role: str, content: str) -> None:
        """Somebody says something."""
        self.messages.append({"role": role, "content": content})

    def add_answer(self, answer: Answer) -> None:
        """The model has answered."""
        message: Message = {"role": "assistant", "content": answer.content}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = [_call(call) for call in answer.calls]
        self.messages.append(message)

    def take_back(self) -> None:
        """Drop the last message."""
        self.messages.pop()

    def clear(self) -> None:
        """Forget everything but the system message."""
        del self.messages[self.num_system :]

    @property
    def num_system(self) -> int:
        return int(bool(self.messages) and self.messages[0]["role"] == "system")

    def save(self, path: Path) -> None:
        """Write all messages to a file."""
        text = json.dumps({"messages": self.messages}, ensure_ascii=False, indent=1)
        try:
            path.write_text(text + "\n", encoding="utf-8", errors="replace")
        except OSError as error:
            raise RequestError(f"{path} cannot be written: {error.strerror}") from error

    def load(self, path: Path) -> None:
        """Take the messages of a file in place of these."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise RequestError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise RequestError(
                f"{path} is no JSON: {error}", "give a file that /save wrote"
            ) from error
        messages = found.get("messages") if isinstance(found, dict) else found
        if not isinstance(messages, list) or not all(_is_message(one) for one in messages):
            raise RequestError(f"{path} holds no conversation", "give a file that /save wrote")
        self.messages = messages


def _is_message(value: object) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("role"), str)
        and isinstance(value.get("content"), str)
    )


def _call(call: ToolCall) -> dict[str, Any]:
    """A call as templates want it: arguments as values, where they are whole."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except ValueError:
        arguments = call.arguments
    return {"type": "function", "function": {"name": call.name, "arguments": arguments}}
