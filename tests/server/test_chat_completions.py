"""Chat completions as the official OpenAI client sees them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from qeff.apps.opening import Setup, open_engine
from qeff.container import Container
from qeff.generate import Engine, SamplingParams, Text

ASKED = [{"role": "user", "content": "my name is"}]


@pytest.fixture(scope="module")
def engine(container: Path) -> Iterator[Engine]:
    opened = Container.open(container)
    with open_engine(opened, Text.from_container(opened), Setup(threads=1)) as one:
        yield one


@pytest.fixture(scope="module")
def client(server: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def direct(engine: Engine, params: SamplingParams, messages: Any = None) -> str:
    """What the engine writes without a server."""
    assert engine.text is not None
    ids = engine.text.encode_chat(messages or ASKED)
    return engine.generate([ids], params)[0].text


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"temperature": 0.9, "seed": 5}])
def test_the_text_is_the_engines(
    client: openai.OpenAI, engine: Engine, settings: dict[str, Any]
) -> None:
    told = direct(engine, SamplingParams(max_tokens=12, **settings))
    answer = client.chat.completions.create(model="tiny", messages=ASKED, max_tokens=12, **settings)
    assert answer.choices[0].message.content == told
    assert answer.choices[0].finish_reason == "length"
    assert answer.object == "chat.completion" and answer.model == "tiny"
    chunks = list(
        client.chat.completions.create(
            model="tiny", messages=ASKED, max_completion_tokens=12, stream=True, **settings
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == told
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks].count("length") == 1
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert all(chunk.usage is None for chunk in chunks)


def test_async_client(server: Any, engine: Engine) -> None:
    told = direct(engine, SamplingParams(max_tokens=8, temperature=1.0, seed=2))

    async def ask() -> tuple[str | None, str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            settings: dict[str, Any] = {"model": "tiny", "messages": ASKED, "max_tokens": 8}
            whole = await client.chat.completions.create(**settings, seed=2)
            stream = await client.chat.completions.create(**settings, seed=2, stream=True)
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
            return whole.choices[0].message.content, "".join(pieces)

    assert asyncio.run(ask()) == (told, told)


def test_usage_counts_prompt_output_and_cached_tokens(
    client: openai.OpenAI, engine: Engine
) -> None:
    messages = [{"role": "user", "content": "the sun rises from the flat earth " * 3}]
    assert engine.text is not None
    num_prompt = len(engine.text.encode_chat(messages))
    settings: dict[str, Any] = {"model": "tiny", "messages": messages, "max_tokens": 4}
    first = client.chat.completions.create(**settings, temperature=0).usage
    assert first is not None
    assert (first.prompt_tokens, first.completion_tokens) == (num_prompt, 4)
    assert first.total_tokens == num_prompt + 4
    chunks = list(
        client.chat.completions.create(
            **settings, temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[-1].choices == [] and all(chunk.usage is None for chunk in chunks[:-1])
    last = chunks[-1].usage
    assert last is not None and last.prompt_tokens_details is not None
    assert last.total_tokens == num_prompt + 4
    assert last.prompt_tokens_details.cached_tokens == num_prompt - 1  # the last is computed


def test_logprobs_have_tokens_bytes_and_the_likeliest(
    client: openai.OpenAI, engine: Engine
) -> None:
    settings: dict[str, Any] = {
        "model": "tiny",
        "messages": ASKED,
        "max_tokens": 10,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 3,
    }
    whole = client.chat.completions.create(**settings).choices[0]
    assert whole.logprobs is not None and whole.logprobs.content is not None
    entries = whole.logprobs.content
    assert len(entries) == 10
    for entry in entries:
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token  # greedy takes the likeliest
    joined = b"".join(bytes(entry.bytes or ()) for entry in entries)
    assert joined.decode("utf-8", "replace").startswith((whole.message.content or "")[:3])
    streamed = [
        entry
        for chunk in client.chat.completions.create(**settings, stream=True)
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content or ()
    ]
    assert [entry.token for entry in streamed] == [entry.token for entry in entries]


def test_several_outputs_have_indices_of_their_own(client: openai.OpenAI) -> None:
    settings: dict[str, Any] = {"model": "tiny", "messages": ASKED, "max_tokens": 6, "seed": 1}
    whole = client.chat.completions.create(**settings, n=3)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in whole.choices}) > 1
    texts = ["", "", ""]
    for chunk in client.chat.completions.create(**settings, n=3, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]


def test_stop_strings_end_the_text(client: openai.OpenAI, engine: Engine) -> None:
    told = direct(engine, SamplingParams(max_tokens=12))
    stop = told[4:6]
    answer = client.chat.completions.create(
        model="tiny", messages=ASKED, max_tokens=12, temperature=0, stop=[stop]
    )
    assert answer.choices[0].message.content == told[: told.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_extras_of_other_servers(client: openai.OpenAI, engine: Engine) -> None:
    assert engine.text is not None
    (banned,) = engine.generate([engine.text.encode_chat(ASKED)], SamplingParams(max_tokens=1))
    extra = {"top_k": 5, "min_p": 0.01, "typical_p": 0.9, "repetition_penalty": 1.1}
    params = SamplingParams(
        temperature=0.7, seed=3, max_tokens=9, ignore_eos=True, min_tokens=2, **extra
    )
    answer = client.chat.completions.create(
        model="tiny",
        messages=ASKED,
        max_tokens=9,
        temperature=0.7,
        seed=3,
        extra_body={**extra, "ignore_eos": True, "min_tokens": 2, "priority": 1, "cache_salt": "a"},
    )
    assert answer.choices[0].message.content == direct(engine, params)
    biased = client.chat.completions.create(
        model="tiny",
        messages=ASKED,
        max_tokens=1,
        temperature=0,
        logit_bias={str(banned.token_ids[0]): -100},
    )
    assert biased.choices[0].message.content != banned.text


def test_roles_parts_and_a_beginning(client: openai.OpenAI, engine: Engine) -> None:
    given = [
        {"role": "developer", "content": "be flat"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    rendered = [{"role": "system", "content": "be flat"}, {"role": "user", "content": "a\nb"}]
    params = SamplingParams(max_tokens=6)
    settings: dict[str, Any] = {"model": "tiny", "max_tokens": 6, "temperature": 0}
    answer = client.chat.completions.create(messages=given, **settings)
    assert answer.choices[0].message.content == direct(engine, params, rendered)
    assert engine.text is not None
    ids = engine.text.encode_chat(rendered) + engine.text.encode("once upon")
    begun = client.chat.completions.create(
        messages=[*given, {"role": "assistant", "content": "once upon"}],
        extra_body={"continue_final_message": True},
        **settings,
    )
    assert begun.choices[0].message.content == engine.generate([ids], params)[0].text


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0]",
        ),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 2, "temperature": 0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**40}, "max_tokens"),
        ({"stop": ""}, "stop"),
        ({"seed": 1.5}, "seed"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"messages": [{"role": "user", "content": "flat " * 400}]}, "messages"),
    ],
)
def test_mistakes_are_400_with_the_field(server: Any, change: dict[str, Any], param: str) -> None:
    body = {"model": "tiny", "messages": ASKED, "max_tokens": 2, **change}
    for is_streamed in (False, True):
        response = server.post("/v1/chat/completions", **{"stream": is_streamed, **body})
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["message"].endswith(".") and "\n" not in error["message"]
        assert (error["param"] or "").startswith(param), error


def test_unknown_models_and_fields(server: Any, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="other", messages=ASKED)
    assert caught.value.code == "model_not_found"
    response = server.post(
        "/v1/chat/completions", messages=ASKED, max_tokens=2, user="me", metadata={"a": 1}, odd=[1]
    )
    assert response.status_code == 200 and response.json()["model"] == "tiny"


def test_the_stream_is_plain_events(server: Any) -> None:
    body = {"messages": ASKED, "max_tokens": 3, "stream": True}
    response = server.post("/v1/chat/completions", **body)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = response.text.strip().split("\n\n")
    assert events[-1] == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
