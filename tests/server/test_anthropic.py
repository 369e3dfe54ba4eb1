"""Anthropic's messages as the official client sees them: blocks, events, errors and counts."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import jsonschema
import openai
import pytest
from tooled import CLOCK, WEATHER

ASKED = [{"role": "user", "content": "my name is"}]
SETTINGS: dict[str, Any] = {"model": "tiny", "max_tokens": 10, "messages": ASKED}
TOOLS = [
    {"name": "weather", "description": "how it is", "input_schema": WEATHER},
    {"name": "clock", "input_schema": CLOCK},
]


@pytest.fixture(scope="module")
def client(talkers: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=talkers.url, api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def other(talkers: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{talkers.url}/v1", api_key="none", max_retries=0)


def test_the_text_is_that_of_chat(client: anthropic.Anthropic, other: openai.OpenAI) -> None:
    same = other.chat.completions.create(
        model="tiny",
        messages=[{"role": "system", "content": "be flat"}, *ASKED],
        max_tokens=10,
        temperature=0.8,
        seed=4,
    )
    extra = {"temperature": 0.8, "seed": 4}
    message = client.messages.create(**SETTINGS, system="be flat", extra_body=extra)
    assert message.content[0].type == "text"
    assert message.content[0].text == same.choices[0].message.content
    assert message.stop_reason == "max_tokens" and message.stop_sequence is None
    assert message.role == "assistant" and message.model == "tiny"
    assert same.usage is not None
    usage = message.usage
    assert usage.output_tokens == 10
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == same.usage.prompt_tokens


def test_events_make_the_message(client: anthropic.Anthropic) -> None:
    extra = {"temperature": 0}
    whole = client.messages.create(**SETTINGS, extra_body=extra)
    events = list(client.messages.create(**SETTINGS, extra_body=extra, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    with client.messages.stream(**SETTINGS, extra_body=extra) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text
    assert final.stop_reason == "max_tokens" and final.usage.output_tokens == 10


def test_the_wire_has_named_events_and_a_ping(talkers: Any) -> None:
    response = talkers.post("/v1/messages", **SETTINGS, stream=True)
    names = [line[7:] for line in response.text.splitlines() if line.startswith("event: ")]
    assert names[:2] == ["message_start", "ping"] and names[-1] == "message_stop"


def test_async_client(talkers: Any, client: anthropic.Anthropic) -> None:
    told = client.messages.create(**SETTINGS, extra_body={"seed": 1}).content[0].text

    async def ask() -> tuple[str, str]:
        async with anthropic.AsyncAnthropic(base_url=talkers.url, api_key="none") as one:
            whole = await one.messages.create(**SETTINGS, extra_body={"seed": 1})
            async with one.messages.stream(**SETTINGS, extra_body={"seed": 1}) as stream:
                return whole.content[0].text, await stream.get_final_text()

    assert asyncio.run(ask()) == (told, told)


def test_stop_sequences_are_named(client: anthropic.Anthropic) -> None:
    told = client.messages.create(**SETTINGS, extra_body={"temperature": 0}).content[0].text
    stop = told[4:6]
    message = client.messages.create(
        **SETTINGS, stop_sequences=["never comes", stop], extra_body={"temperature": 0}
    )
    assert message.stop_reason == "stop_sequence" and message.stop_sequence == stop
    assert message.content[0].text == told[: told.index(stop)]


@pytest.mark.parametrize("seed", range(3))
def test_tools_are_called_and_answered(client: anthropic.Anthropic, seed: int) -> None:
    settings = {**SETTINGS, "model": "tooled", "max_tokens": 300, "tools": TOOLS}
    choice = {"type": "tool", "name": "weather"}
    message = client.messages.create(**settings, tool_choice=choice, extra_body={"seed": seed})
    (call,) = message.content
    assert call.type == "tool_use" and call.name == "weather"
    assert message.stop_reason == "tool_use"
    jsonschema.validate(call.input, WEATHER)
    with client.messages.stream(
        **settings, tool_choice=choice, extra_body={"seed": seed}
    ) as stream:
        (streamed,) = stream.get_final_message().content
    assert streamed.type == "tool_use" and streamed.input == call.input
    single = {"type": "any", "disable_parallel_tool_use": True}
    (one,) = client.messages.create(**settings, tool_choice=single).content
    assert one.type == "tool_use" and one.name in ("weather", "clock")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "warm"}
    told = [
        *ASKED,
        {"role": "assistant", "content": [call.model_dump()]},
        {"role": "user", "content": [result, {"type": "text", "text": "so?"}]},
    ]
    count = client.messages.count_tokens(model="tooled", messages=told, tools=TOOLS).input_tokens
    following = client.messages.create(**{**settings, "max_tokens": 2, "messages": told})
    usage = following.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == count


def test_thinking_is_a_block(client: anthropic.Anthropic) -> None:
    grammar = {"chat_template_kwargs": {"enable_thinking": True}}
    settings = {**SETTINGS, "model": "thinking", "thinking": {"type": "adaptive"}}
    with_thoughts = client.messages.count_tokens(
        model="thinking", messages=ASKED, thinking={"type": "adaptive"}
    )
    without = client.messages.count_tokens(
        model="thinking", messages=ASKED, thinking={"type": "disabled"}
    )
    assert with_thoughts.input_tokens > without.input_tokens
    message = client.messages.create(**settings, extra_body=grammar)
    assert message.content[0].type == "thinking"
    with client.messages.stream(**settings) as stream:
        assert stream.get_final_message().content[0].type == "thinking"


def test_the_answer_goes_on_from_a_last_message(
    client: anthropic.Anthropic, other: openai.OpenAI
) -> None:
    begun = [*ASKED, {"role": "assistant", "content": "once upon"}]
    message = client.messages.create(
        **{**SETTINGS, "messages": begun}, extra_body={"temperature": 0}
    )
    same = other.chat.completions.create(
        model="tiny",
        messages=begun,
        max_tokens=10,
        temperature=0,
        extra_body={"continue_final_message": True},
    )
    assert message.content[0].text == same.choices[0].message.content


def test_a_schema(client: anthropic.Anthropic) -> None:
    import json

    config = {"format": {"type": "json_schema", "schema": CLOCK}}
    message = client.messages.create(**{**SETTINGS, "max_tokens": 100}, output_config=config)
    jsonschema.validate(json.loads(message.content[0].text), CLOCK)


@pytest.mark.parametrize(
    "change",
    [
        {"max_tokens": None},
        {"max_tokens": 0},
        {"messages": []},
        {"messages": [{"role": "robot", "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "other"}},
        {"tools": TOOLS, "tool_choice": {"type": "tool"}},
        {"tool_choice": {"type": "any"}},
        {"temperature": "warm"},
        {"stop_sequences": [""]},
    ],
)
def test_errors_have_anthropics_shape(talkers: Any, change: dict[str, Any]) -> None:
    for is_streamed in (False, True):
        body = {**SETTINGS, "stream": is_streamed, **change}
        response = talkers.post("/v1/messages", **body)
        assert response.status_code == 400, response.text
        told = response.json()
        assert told["type"] == "error"
        assert told["error"]["type"] == "invalid_request_error"
        assert told["error"]["message"].endswith(".")


def test_unknown_models(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="does not exist"):
        client.messages.create(**{**SETTINGS, "model": "other"})


def test_the_client_knows_the_id_of_a_request(client: anthropic.Anthropic) -> None:
    asked = {"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "is"}]}
    raw = client.messages.with_raw_response.create(**asked)
    assert raw.parse()._request_id == raw.headers["x-request-id"]
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.create(**{**asked, "model": "none"})
    assert (caught.value.request_id or "").startswith("req_")


def test_the_key_is_taken_from_anthropics_header(run_server: Any) -> None:
    with run_server(api_key=("secret-enough",)) as server:
        good = anthropic.Anthropic(base_url=server.url, api_key="secret-enough", max_retries=0)
        assert good.messages.create(**SETTINGS).type == "message"
        bad = anthropic.Anthropic(base_url=server.url, api_key="wrong-enough", max_retries=0)
        with pytest.raises(anthropic.AuthenticationError) as caught:
            bad.messages.create(**SETTINGS)
        assert caught.value.body["error"]["type"] == "authentication_error"
