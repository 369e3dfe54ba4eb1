"""Tools for models whose chat templates know of none: told in words, calls as text.

What the template cannot show stands in the messages: the functions in the system message, the calls
between the markers that the answer is searched for, and what the functions gave in a message of the
user. Knows nothing of tokens and of what a model makes of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]
INTRODUCTION = """\
You can call functions. To call one, answer with its name and arguments as JSON between markers:
<tool_call>
{"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}}
</tool_call>
The functions, with the JSON schemas of their arguments:"""


def in_words(messages: Sequence[Message], tools: Sequence[Message]) -> list[dict[str, Any]]:
    """The conversation without anything that only a template for tools can show."""
    found: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool":
            _add_result(found, f"<tool_response>\n{message['content']}\n</tool_response>")
        else:
            found.append(_with_calls(message))
    if tools:
        functions = [json.dumps(tool["function"], ensure_ascii=False) for tool in tools]
        _add_system(found, "\n".join([INTRODUCTION, *functions]))
    return found


def _with_calls(message: Message) -> dict[str, Any]:
    calls = [
        f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>"
        for call in message.get("tool_calls") or ()
    ]
    plain = {key: value for key, value in message.items() if key != "tool_calls"}
    parts = [message["content"], *calls] if message["content"] else calls
    return {**plain, "content": "\n".join(parts)} if calls else plain


def _add_result(found: list[dict[str, Any]], text: str) -> None:
    """Results that follow each other are one message: many templates want turns."""
    if found and found[-1]["role"] == "user" and found[-1]["content"].endswith("</tool_response>"):
        found[-1]["content"] += f"\n{text}"
    else:
        found.append({"role": "user", "content": text})


def _add_system(found: list[dict[str, Any]], text: str) -> None:
    if found and found[0]["role"] == "system":
        found[0] = {**found[0], "content": f"{found[0]['content']}\n\n{text}"}
    else:
        found.insert(0, {"role": "system", "content": text})
