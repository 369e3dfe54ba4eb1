"""One request of a load: the words of OpenAI's protocol, and what its event stream says.

Every answer is streamed. The token counts are the server's own where its stream ends with usage;
elsewhere a piece of text counts as a token. Knows nothing of other requests.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any, Literal

from qeff.apps.load.client import Address, ConnectionLost, Reply, request
from qeff.apps.load.prompts import Ask
from qeff.apps.load.record import Record

Endpoint = Literal["chat", "completions"]
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
MAX_REASON = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Whom to ask, and what every request says."""

    address: Address
    model: str
    endpoint: Endpoint = "completions"
    headers: dict[str, str] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)  # fields added to every body
    timeout_s: float = 600.0

    def body(self, ask: Ask) -> dict[str, Any]:
        """The request for one prompt."""
        is_text = isinstance(ask.prompt, str)
        if self.endpoint == "chat":
            messages = [{"role": "user", "content": ask.prompt}] if is_text else ask.prompt
            prompt: dict[str, Any] = {"messages": messages}
        else:
            prompt = {"prompt": ask.prompt}
        return {
            "model": self.model,
            **prompt,
            "max_tokens": ask.max_tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.extra,
        }


async def send(target: Target, ask: Ask) -> Record:
    """Ask, follow the answer to its end and say what came when."""
    record = Record(time.perf_counter(), ask.num_tokens)
    try:
        async with (
            asyncio.timeout(target.timeout_s),
            request(
                target.address,
                "POST",
                PATHS[target.endpoint],
                body=target.body(ask),
                headers=target.headers,
            ) as reply,
        ):
            if reply.status == 200:
                record.error = await _follow(reply, record)
            else:
                record.error = f"{reply.status}: {_reason(await reply.read())}"
    except TimeoutError:
        record.error = f"no end after {target.timeout_s:g} s"
    except ConnectionLost as error:
        record.error = error.what
    record.ended = time.perf_counter()
    return record


async def _follow(reply: Reply, record: Record) -> str | None:
    """Note every piece of text; returns what went wrong."""
    num_pieces, usage, has_end = 0, None, False
    async for data in reply.events():
        now = time.perf_counter()
        if data == "[DONE]":
            has_end = True
            break
        try:
            event = json.loads(data)
        except ValueError:
            return f"an event is no JSON: {data[:MAX_REASON]}"
        if "error" in event:
            return _reason(data.encode())
        usage = event.get("usage") or usage
        for choice in event.get("choices", ()):
            has_end = has_end or choice.get("finish_reason") is not None
            if _has_text(choice):
                num_pieces += 1
                record.arrived(now)
    usage = usage or {}
    record.num_output = usage.get("completion_tokens", num_pieces)
    record.num_prompt = usage.get("prompt_tokens", record.num_prompt)
    return None if has_end else "the stream ended early"


def _has_text(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta")
    if delta is None:
        return bool(choice.get("text"))
    return any(delta.get(name) for name in ("content", "reasoning_content", "tool_calls"))


def _reason(body: bytes) -> str:
    """The message of an error body, or the body itself, on one line."""
    text = body.decode("utf-8", "replace")
    try:
        found = json.loads(text)["error"]
        text = found["message"] if isinstance(found, dict) else str(found)
    except (ValueError, KeyError, TypeError):
        pass  # not an error in OpenAI's shape: shown as it is
    return " ".join(text.split())[:MAX_REASON]
