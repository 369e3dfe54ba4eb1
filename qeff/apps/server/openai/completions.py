"""POST /v1/completions: text that goes on from one or several prompts."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from qeff.apps.server.departure import while_connected
from qeff.apps.server.errors import bad_request
from qeff.apps.server.merging import merged
from qeff.apps.server.openai.completion_answer import CompletionAnswer
from qeff.apps.server.openai.completion_shapes import MAX_TOKENS, CompletionRequest
from qeff.apps.server.openai.response_format import fit_of
from qeff.apps.server.openai.sampling_fields import sampling_params
from qeff.apps.server.routing import Router
from qeff.apps.server.served import Asked, Progress, Served
from qeff.apps.server.sse import DONE, event, respond
from qeff.apps.server.state import State, cache_salt, serving

router = Router("completions")
Steps = AsyncIterator[tuple[int, Progress]]


@router.post("/v1/completions", CompletionRequest, streams=True)
async def create_completion(body: CompletionRequest, request: Request) -> Response:
    """Go on with a text."""
    _check(body, serving(request))
    if body.stream:
        return await respond(request, _events(request, body))
    return JSONResponse(await while_connected(request, _whole(request, body)))


async def _whole(request: Request, body: CompletionRequest) -> dict[str, Any]:
    async with _asking(request, body) as (answer, steps):
        async for which, progress in steps:
            answer.note(which, progress)
        return answer.whole()


async def _events(request: Request, body: CompletionRequest) -> AsyncIterator[bytes]:
    async with _asking(request, body) as (answer, steps):
        async for which, progress in steps:
            for chunk in answer.chunks(which, progress):
                yield event(chunk)
        for chunk in answer.last_chunks():
            yield event(chunk)
        yield DONE


@asynccontextmanager
async def _asking(
    request: Request, body: CompletionRequest
) -> AsyncIterator[tuple[CompletionAnswer, Steps]]:
    """The model at work on all prompts; leaving ends what still runs."""
    state = serving(request)
    async with state.models.use(body.model) as served:
        asked = [await _asked(served, prompt, body, request) for prompt in body.prompts()]
        count = sum(one.params.num_choices for one in asked)
        num_tokens = sum((one.params.max_tokens or 0) * one.params.num_choices for one in asked)
        async with (
            state.admission.place(num_tokens, count) as place,
            aclosing(merged([served.follow(one) for one in asked])) as steps,  # type: ignore[type-var]
        ):
            answer = CompletionAnswer(served, asked, body, int(time.time()))
            yield answer, _marked(steps, place.started)


async def _marked(steps: Steps, started: Any) -> Steps:
    async for step in steps:
        started()
        yield step


def _check(body: CompletionRequest, state: State) -> None:
    """Refuse what no model could do, before one is opened."""
    if body.suffix:
        raise bad_request("suffix is not offered: models here only go on at the end.", "suffix")
    if body.stream and body.echo and body.logprobs is not None:
        raise bad_request("echo with logprobs cannot be streamed.", "stream")
    if body.stream and (body.best_of or 1) > (body.n or 1):
        raise bad_request("best_of cannot be streamed.", "best_of")
    if body.max_tokens == 0 and not body.echo:
        raise bad_request("max_tokens must be at least 1 without echo.", "max_tokens")
    num_outputs = len(body.prompts()) * (body.best_of or body.n or 1)
    if num_outputs > state.config.max_outputs:
        raise bad_request(
            f"The request asks for {num_outputs} outputs, and {state.config.max_outputs} are the"
            " most.",
            "prompt",
        )


async def _asked(
    served: Served, prompt: str | list[int], body: CompletionRequest, request: Request
) -> Asked:
    config = serving(request).config
    if isinstance(prompt, str):
        served.check_length(len(prompt), "prompt")
        ids = await served.encode_soon(prompt)
    else:
        ids = prompt
    served.check_prompt(ids, "prompt")
    params = sampling_params(
        body,
        max_tokens=MAX_TOKENS if body.max_tokens is None else max(body.max_tokens, 1),
        best_of=body.best_of,
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
    )
    served.check_params(params)
    fit = fit_of(body)
    return Asked(
        prompt=tuple(ids),
        params=served.fitted(params, len(ids), config.max_tokens),
        constraint=fit.constraint,
        constraint_field=fit.field,
        priority=body.priority or 0,
        cache_salt=cache_salt(request, body.cache_salt),
        deadline_s=config.request_timeout_s,
    )
