"""Anthropic's messages as a model's template takes them, and as a question.

Blocks of one turn become messages: results of tools stand before what the person says, thoughts and
calls belong to the answer. Knows nothing of tokens and of how answers are told.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request

from qeff.apps.server.anthropic.shapes import (
    Conversation,
    Message,
    MessageRequest,
    OtherBlock,
    TextBlock,
    ThinkingBlock,
    Tool,
    ToolResultBlock,
    ToolUseBlock,
)
from qeff.apps.server.body import size_of
from qeff.apps.server.errors import bad_request
from qeff.apps.server.fit import Fit
from qeff.apps.server.openai.conversation import no_media
from qeff.apps.server.openai.response_format import fit
from qeff.apps.server.openai.sampling_fields import sampling_params
from qeff.apps.server.openai.tool_choice import chosen, tool_use
from qeff.apps.server.question import Question, ToolUse, Use
from qeff.apps.server.state import cache_salt
from qeff.generate import Constraint

USES = {"auto": Use.AUTO, "any": Use.REQUIRED, "none": Use.NONE}


def question_of(body: Conversation, request: Request) -> Question:
    """What a request asks; a last message of the assistant is what the answer goes on from."""
    messages = messages_of(body)
    last = messages[-1]
    is_begun = last["role"] == "assistant" and "tool_calls" not in last and len(messages) > 1
    beginning = str(messages.pop()["content"]) if is_begun else ""
    own: dict[str, Any] = {"n": 1}
    if isinstance(body, MessageRequest):
        own["max_tokens"] = body.max_tokens
        if body.stop_sequences:
            own["stop"] = tuple(body.stop_sequences)
    return Question(
        messages=messages,
        params=sampling_params(body, **own),
        tools=[_template_tool(tool) for tool in body.tools or ()],
        tool_use=_tool_use(body),
        strict=frozenset(tool.name for tool in body.tools or () if tool.strict),
        fit=_fit(body),
        template_args=_variables(body),
        beginning=beginning,
        priority=body.priority or 0,
        cache_salt=cache_salt(request, body.cache_salt),
        size=size_of(request.scope),
    )


def messages_of(body: Conversation) -> list[dict[str, Any]]:
    """The conversation in the form that chat templates take."""
    found: list[dict[str, Any]] = []
    if body.system:
        blocks = [] if isinstance(body.system, str) else body.system
        text = body.system if isinstance(body.system, str) else "\n".join(b.text for b in blocks)
        found.append({"role": "system", "content": text})
    for index, message in enumerate(body.messages):
        found += _turn(message, f"messages.{index}.content")
    return found


def _turn(message: Message, where: str) -> list[dict[str, Any]]:
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    texts: list[str] = []
    results: list[dict[str, Any]] = []
    answer: dict[str, Any] = {}
    for index, block in enumerate(message.content):
        if isinstance(block, OtherBlock):
            raise no_media(block.type, f"{where}.{index}")
        if isinstance(block, TextBlock):
            texts.append(block.text)
        elif isinstance(block, ToolResultBlock):
            results.append(_result(block, f"{where}.{index}"))
        elif isinstance(block, ThinkingBlock):
            answer["reasoning_content"] = answer.get("reasoning_content", "") + block.thinking
        elif isinstance(block, ToolUseBlock):
            function = {"name": block.name, "arguments": block.input}
            call = {"id": block.id, "type": "function", "function": function}
            answer.setdefault("tool_calls", []).append(call)
    if message.role == "assistant":
        return [{"role": "assistant", "content": "\n".join(texts), **answer}]
    said = [{"role": message.role, "content": "\n".join(texts)}] if texts or not results else []
    return results + said


def _result(block: ToolResultBlock, where: str) -> dict[str, Any]:
    parts: Sequence[Any] = () if block.content is None else block.content
    if isinstance(parts, str):
        text = parts
    else:
        for index, part in enumerate(parts):
            if isinstance(part, OtherBlock):
                raise no_media(part.type, f"{where}.content.{index}")
        text = "\n".join(part.text for part in parts)
    return {"role": "tool", "content": text, "tool_call_id": block.tool_use_id}


def _template_tool(tool: Tool) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description or "",
        "parameters": tool.input_schema,
    }
    return {"type": "function", "function": function}


def _tool_use(body: Conversation) -> ToolUse:
    names = [tool.name for tool in body.tools or ()]
    choice = body.tool_choice
    is_parallel = not (choice and choice.disable_parallel_tool_use)
    if choice is None or choice.type != "tool":
        use = None if choice is None else USES[choice.type].value
        return tool_use(use, names, is_parallel=is_parallel)  # type: ignore[arg-type]
    if choice.name is None:
        raise bad_request("The choice of a tool needs its name.", "tool_choice.name")
    return chosen([choice.name], Use.REQUIRED, names, is_single=True)


def _fit(body: Conversation) -> Fit:
    if body.output_config is None or body.output_config.format is None:
        return Fit()
    return fit("output_config.format", Constraint.json_schema, body.output_config.format.schema_)


def _variables(body: Conversation) -> dict[str, Any]:
    variables = dict(body.chat_template_kwargs or {})
    if body.thinking is not None:
        variables.setdefault("enable_thinking", body.thinking.type != "disabled")
    return variables
