"""The page before a server that says what a test wants: answers, reasoning, calls and failures.

The last message decides, so a test needs no model to see how the page takes each of them.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Iterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from qeff.apps.server import page_route
from qeff.apps.server.errors import ApiError
from qeff.apps.server.replies import error_response

KEY = "sesame-open-12"
MARKDOWN = """\
# Bread

A **loaf** needs *time*, `flour` and ~~haste~~ patience.

1. Mix
   - flour
   - water
2. Wait

| Step | Minutes |
|:-----|--------:|
| Mix  | 10 |
| Bake | 40 |

> Slow is smooth.

```python
def bake(minutes: int) -> str:
	return f"done after {minutes}"  # hot
```

See [a recipe](https://example.org/bread) or <https://example.org>.
"""
PROBE = (
    "<img src=x onerror=\"window.harmed='img'\"><script>window.harmed='script'</script>"
    " [click](javascript:window.harmed=1) [data](data:text/html,x)"
    " ![pic](https://example.org/tracker.png)\n\n"
    '```html\n<b onclick="window.harmed=1">\n```\n\n'
    "| <svg/onload=alert(1)> | b |\n|---|---|\n| x | y |\n"
)


def make_app() -> Starlette:
    """The application; ``app.state.wants_key`` and ``app.state.bodies`` are for tests."""

    async def on_error(request: Request, error: ApiError) -> Response:
        return error_response(error, request.scope)

    async def models(request: Request) -> Response:
        check_key(request)
        return JSONResponse({"data": [{"id": "calm-135m"}, {"id": "calm-1b"}]})

    async def version(request: Request) -> Response:
        return JSONResponse({"version": "1.0"})

    async def stats(request: Request) -> Response:
        check_key(request)
        app.state.num_stats += 1
        return JSONResponse(numbers())

    async def chat(request: Request) -> Response:
        check_key(request)
        body = await request.json()
        app.state.bodies.append(body)
        asked = body["messages"][-1]["content"]
        if asked == "refuse":
            raise ApiError(400, "the prompt is too long")
        if asked == "busy":
            raise ApiError(429, "The server is busy.", headers={"Retry-After": "7"})
        if asked == "plain error":
            return JSONResponse("no", 502)
        return StreamingResponse(events(body, asked), media_type="text/event-stream")

    page = [Route(one.path, one.respond) for one in page_route.router.operations]
    rest = [Route("/v1/models", models), Route("/version", version), Route("/stats", stats)]
    chats = [Route("/v1/chat/completions", chat, methods=["POST"])]
    app = Starlette(routes=page + rest + chats, exception_handlers={ApiError: on_error})
    app.state.wants_key = False
    app.state.bodies = []
    app.state.num_stats = 0
    return app


def check_key(request: Request) -> None:
    wanted = f"Bearer {KEY}"
    if request.app.state.wants_key and request.headers.get("authorization") != wanted:
        raise ApiError(401, "there is no API key in the request", "authentication_error")


async def events(body: dict[str, Any], asked: str) -> AsyncIterator[str]:
    """The chunks of an answer, some milliseconds apart."""
    yield ": still here\n\n"
    number = 0
    for delta in deltas(asked, len(body["messages"])):
        await asyncio.sleep(0.03 if asked == "endless" else 0.002)
        number += 1
        chunk: dict[str, Any] = {"model": body["model"], "choices": [{"index": 0, "delta": delta}]}
        if asked == "break" and number == 5:
            yield f"data: {json.dumps({'error': {'message': 'the engine stopped'}})}\n\n"
            return
        yield f"data: {json.dumps(chunk)}\n\n"
    if asked == "cut":
        return
    finish = "tool_calls" if asked == "tools" else "stop"
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
    usage = {"prompt_tokens": 12, "completion_tokens": number}
    yield f"data: {json.dumps(last)}\n\ndata: {json.dumps({'choices': [], 'usage': usage})}\n\n"
    yield "data: [DONE]\n\n"


def deltas(asked: str, num_messages: int) -> Iterator[dict[str, Any]]:
    """The pieces of an answer."""
    if asked == "endless":
        for number in range(100_000):
            yield {"content": f"word{number} "}
    elif asked == "tools":
        call = {"index": 0, "id": "call_1", "type": "function"}
        yield {"tool_calls": [{**call, "function": {"name": "get_weather", "arguments": ""}}]}
        for part in ('{"city"', ': "Oslo"}'):
            yield {"tool_calls": [{"index": 0, "function": {"arguments": part}}]}
    else:
        if asked == "think":
            for part in ("First ", "I think ", "about it."):
                yield {"reasoning_content": part, "reasoning": part}
        said = {"markdown": MARKDOWN, "probe": PROBE}.get(
            asked, f"You said: {asked} ({num_messages})"
        )
        for at in range(0, len(said), 3):
            yield {"content": said[at : at + 3]}


def numbers() -> dict[str, Any]:
    """What /stats says of a server under some load."""
    wave = [40 + 18 * math.sin(at / 9) + 5 * math.sin(at / 2) for at in range(120)]
    part = {
        "running": 6,
        "waiting": 3,
        "open": 1,
        "finished": 1284,
        "tokens_per_s": 47.2,
        "output_tokens": 98213,
        "prompt_tokens": 312907,
        "drafted": 4120,
        "cache_use": 0.42,
        "prefix_hit_rate": 0.63,
        "acceptance": None,
        "ttft_s": {"p50": 0.21, "p90": 0.52, "p95": 0.74, "p99": 1.31},
        "itl_s": {"p50": 0.021, "p90": 0.034, "p95": 0.041, "p99": 0.088},
        "e2e_s": {"p50": 3.1, "p90": 6.8, "p95": None, "p99": None},
    }
    return {
        **part,
        "refused": 2,
        "history": {
            "running": [round(value / 9) for value in wave],
            "waiting": [max(0, round(value / 9) - 4) for value in wave],
            "cache_use": [value / 110 for value in wave],
            "tokens_per_s": wave,
        },
        "models": {"calm-135m": part, "calm-1b": {"open": 0, "running": 0}},
    }
