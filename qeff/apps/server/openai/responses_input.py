"""The input of a response as a conversation: items to messages, tools and formats to questions.

The server keeps no answers, so a request has to hold the whole conversation. Knows nothing of
tokens and of how answers are told.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from qeff.apps.server.body import size_of
from qeff.apps.server.errors import bad_request
from qeff.apps.server.fit import Fit
from qeff.apps.server.openai.conversation import no_media, read_arguments
from qeff.apps.server.openai.response_format import fit, fit_of
from qeff.apps.server.openai.responses_shapes import (
    CallItem,
    FunctionTool,
    Item,
    MessageItem,
    NamedChoice,
    OtherPart,
    OutputItem,
    Part,
    PlainFormat,
    ReasoningItem,
    ResponsesRequest,
    SchemaFormat,
    TextPart,
    ToolChoice,
)
from qeff.apps.server.openai.sampling_fields import sampling_params
from qeff.apps.server.openai.tool_choice import chosen, tool_use
from qeff.apps.server.question import Question, ToolUse, Use
from qeff.apps.server.state import cache_salt
from qeff.generate import Constraint

LOGPROBS = "message.output_text.logprobs"


def question_of(body: ResponsesRequest, request: Request) -> Question:
    """What a request asks; refuses what would need a memory of earlier ones."""
    _check(body)
    tools = [_template_tool(tool) for tool in body.tools or ()]
    variables = dict(body.chat_template_kwargs or {})
    if body.reasoning is not None and body.reasoning.effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning.effort)
    params = sampling_params(
        body,
        n=1,
        max_tokens=body.max_output_tokens,
        logprobs=(body.top_logprobs or 0) if has_logprobs(body) else None,
    )
    return Question(
        messages=messages_of(body),
        params=params,
        tools=tools,
        tool_use=_tool_use(body, [tool.name for tool in body.tools or ()]),
        strict=frozenset(tool.name for tool in body.tools or () if tool.strict),
        fit=_fit(body),
        template_args=variables,
        priority=body.priority or 0,
        cache_salt=cache_salt(request, body.cache_salt),
        size=size_of(request.scope),
    )


def has_logprobs(body: ResponsesRequest) -> bool:
    """Whether log-probabilities are wanted."""
    return bool(body.top_logprobs) or LOGPROBS in (body.include or ())


def messages_of(body: ResponsesRequest) -> list[dict[str, Any]]:
    """The conversation in the form that chat templates take."""
    messages: list[dict[str, Any]] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*messages, {"role": "user", "content": body.input}]
    for index, item in enumerate(body.input):
        _add(messages, item, f"input[{index}]")
    return messages


def _check(body: ResponsesRequest) -> None:
    for name in ("previous_response_id", "conversation", "prompt"):
        if getattr(body, name) is not None:
            raise bad_request(
                f"{name} cannot be used, since this server keeps no responses; "
                "send the whole conversation as input.",
                name,
            )
    if body.background:
        raise bad_request("This server runs nothing in the background.", "background")


def _add(messages: list[dict[str, Any]], item: Item, where: str) -> None:
    """Add an item; thoughts and calls belong to the answer that they are neighbours in."""
    if isinstance(item, MessageItem):
        text = _joined(item.content, f"{where}.content")
        role = "system" if item.role == "developer" else item.role
        last = messages[-1] if messages else {}
        if role == "assistant" and last.get("role") == "assistant" and not last["content"]:
            last["content"] = text
        else:
            messages.append({"role": role, "content": text})
    elif isinstance(item, OutputItem):
        text = _joined(item.output, f"{where}.output")
        messages.append({"role": "tool", "content": text, "tool_call_id": item.call_id})
    elif isinstance(item, CallItem):
        function = {"name": item.name, "arguments": read_arguments(item.arguments)}
        call = {"id": item.call_id, "type": "function", "function": function}
        _assistant(messages).setdefault("tool_calls", []).append(call)
    elif isinstance(item, ReasoningItem):
        parts = item.content or item.summary or []
        message = {"role": "assistant", "content": ""}
        messages.append({**message, "reasoning_content": "\n".join(part.text for part in parts)})
    else:
        raise bad_request(
            "Items cannot be referred to, since this server keeps none; send the item itself.",
            where,
        )


def _assistant(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The answer that a call belongs to."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _joined(content: str | list[Part], where: str) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for index, part in enumerate(content):
        if isinstance(part, OtherPart):
            raise no_media(part.type, f"{where}[{index}]")
        texts.append(part.text if isinstance(part, TextPart) else part.refusal)
    return "\n".join(texts)


def _template_tool(tool: FunctionTool) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description or "",
        "parameters": tool.parameters or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function}


def _tool_use(body: ResponsesRequest, names: list[str]) -> ToolUse:
    choice: ToolChoice | None = body.tool_choice
    plain = tool_use(
        choice if isinstance(choice, str) else None, names, is_parallel=body.parallel_tool_calls
    )
    if choice is None or isinstance(choice, str):
        return plain
    if isinstance(choice, NamedChoice):
        return chosen([choice.name], Use.REQUIRED, names, is_single=True)
    wanted = [one.name for one in choice.tools]
    return chosen(wanted, Use(choice.mode), names, is_single=plain.is_single)


def _fit(body: ResponsesRequest) -> Fit:
    own = fit_of(body)
    form = body.text.format if body.text is not None else None
    if form is None or (isinstance(form, PlainFormat) and form.type == "text"):
        return own
    if own.constraint is not None:
        raise bad_request("Only one field can say what the output has to fit.", "text.format")
    if not isinstance(form, SchemaFormat):
        return Fit(Constraint.json_object(), "text.format")
    return fit("text.format", Constraint.json_schema, form.schema_)
