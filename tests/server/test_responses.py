"""OpenAI's responses as the official client sees them: items, events and what is refused."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import jsonschema
import openai
import pytest
from tooled import CLOCK, WEATHER

SETTINGS: dict[str, Any] = {"model": "tiny", "input": "my name is", "max_output_tokens": 10}
TOOLS = [
    {"type": "function", "name": "weather", "parameters": WEATHER, "strict": True},
    {"type": "function", "name": "clock", "parameters": CLOCK, "strict": True},
]


@pytest.fixture(scope="module")
def client(talkers: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{talkers.url}/v1", api_key="none", max_retries=0)


def chat(client: openai.OpenAI, messages: list[dict[str, Any]], **more: Any) -> str | None:
    """The same question as a chat completion, which other tests compare with the engine."""
    answer = client.chat.completions.create(messages=messages, **{"model": "tiny", **more})
    return answer.choices[0].message.content


def test_the_text_is_that_of_chat(client: openai.OpenAI) -> None:
    told = chat(client, [{"role": "user", "content": "my name is"}], max_tokens=10, temperature=0)
    answer = client.responses.create(**SETTINGS, temperature=0)
    assert answer.output_text == told
    assert answer.status == "incomplete" and answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.usage is not None and answer.usage.output_tokens == 10
    assert answer.usage.total_tokens == answer.usage.input_tokens + 10
    (item,) = answer.output
    assert item.type == "message" and item.role == "assistant"


def test_events_are_numbered_and_make_the_response(client: openai.OpenAI) -> None:
    whole = client.responses.create(**SETTINGS, temperature=0)
    events = list(client.responses.create(**SETTINGS, temperature=0, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 2 and "".join(deltas) == whole.output_text
    assert events[-1].response.output_text == whole.output_text


def test_the_clients_own_stream_and_its_async_form(talkers: Any, client: openai.OpenAI) -> None:
    told = client.responses.create(**SETTINGS, extra_body={"seed": 3}).output_text
    with client.responses.stream(**SETTINGS, extra_body={"seed": 3}) as stream:
        assert "".join(e.delta for e in stream if e.type == "response.output_text.delta") == told

    async def ask() -> str:
        async with openai.AsyncOpenAI(base_url=f"{talkers.url}/v1", api_key="none") as one:
            return (await one.responses.create(**SETTINGS, extra_body={"seed": 3})).output_text

    assert asyncio.run(ask()) == told


def test_items_are_a_conversation(client: openai.OpenAI) -> None:
    messages = [
        {"role": "system", "content": "be flat"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    told = chat(client, messages, max_tokens=10, temperature=0)
    answer = client.responses.create(
        model="tiny",
        instructions="be flat",
        input=[
            {"role": "user", "content": "a"},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "b", "annotations": []}],
            },
            {"role": "user", "content": [{"type": "input_text", "text": "c"}]},
        ],
        max_output_tokens=10,
        temperature=0,
    )
    assert answer.output_text == told and answer.instructions == "be flat"


def test_calls_are_items_and_go_back(client: openai.OpenAI) -> None:
    settings: dict[str, Any] = {"model": "tooled", "tools": TOOLS, "max_output_tokens": 300}
    asked = {"role": "user", "content": "the sun"}
    choice = {"type": "function", "name": "weather"}
    answer = client.responses.create(
        **settings, input=[asked], tool_choice=choice, extra_body={"seed": 1}
    )
    (call,) = answer.output
    assert call.type == "function_call" and call.name == "weather"
    assert answer.status == "completed"
    jsonschema.validate(json.loads(call.arguments), WEATHER)
    events = list(
        client.responses.create(
            **settings, input=[asked], tool_choice=choice, extra_body={"seed": 1}, stream=True
        )
    )
    pieces = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    assert "".join(pieces) == call.arguments
    (done,) = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert done.arguments == call.arguments
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "warm"}
    following = client.responses.create(
        **{**settings, "max_output_tokens": 2}, input=[asked, call.model_dump(), output]
    )
    same = client.chat.completions.create(
        model="tooled",
        max_tokens=2,
        tools=[{"type": "function", "function": _function(tool)} for tool in TOOLS],
        messages=[
            asked,
            {
                "role": "assistant",
                "tool_calls": [
                    {
                        "id": call.call_id,
                        "type": "function",
                        "function": {"name": call.name, "arguments": call.arguments},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": call.call_id, "content": "warm"},
        ],
    )
    assert following.usage is not None and same.usage is not None
    assert following.usage.input_tokens == same.usage.prompt_tokens


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    return {"name": tool["name"], "parameters": tool["parameters"]}


def test_thoughts_are_an_item(client: openai.OpenAI) -> None:
    extra = {
        "chat_template_kwargs": {"enable_thinking": True},
        "guided_grammar": 'start: "the sun</think>\\n\\nrises"',
    }
    settings: dict[str, Any] = {"model": "thinking", "input": "is", "extra_body": extra}
    thought, message = client.responses.create(**settings).output
    assert thought.type == "reasoning" and thought.content is not None
    assert thought.content[0].text == "the sun"
    assert message.type == "message" and message.content[0].text == "rises"
    events = list(client.responses.create(**settings, stream=True))
    pieces = [e.delta for e in events if e.type == "response.reasoning_text.delta"]
    assert "".join(pieces) == "the sun"
    assert [e.output_index for e in events if e.type == "response.output_item.done"] == [0, 1]
    usage = events[-1].response.usage
    assert usage is not None and usage.output_tokens_details.reasoning_tokens > 0


def test_a_schema_and_logprobs(client: openai.OpenAI) -> None:
    form = {"type": "json_schema", "name": "clock", "schema": CLOCK}
    answer = client.responses.create(
        model="tiny",
        input="is",
        text={"format": form},
        include=["message.output_text.logprobs"],
        top_logprobs=2,
    )
    jsonschema.validate(json.loads(answer.output_text), CLOCK)
    (item,) = answer.output
    assert item.type == "message" and item.content[0].type == "output_text"
    logprobs = item.content[0].logprobs or []
    assert logprobs and all(len(entry.top_logprobs) == 2 for entry in logprobs)
    assert answer.text is not None and answer.text.format is not None
    assert answer.text.format.type == "json_schema"


def test_an_event_tells_nothing_of_later_ones(talkers: Any) -> None:
    asked = {"model": "tiny", "input": "is", "max_output_tokens": 4, "stream": True}
    answer = talkers.post("/v1/responses", **asked, include=["message.output_text.logprobs"])
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line[:6] == "data: "]
    (added,) = [one for one in events if one["type"] == "response.content_part.added"]
    assert (added["part"]["text"], added["part"]["logprobs"]) == ("", [])
    assert any(one.get("logprobs") for one in events)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"type": "web_search_call"}]}, "input[0]"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0]",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "schema": {"type": "x"}}}}, "text.format"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
)
def test_mistakes(talkers: Any, change: dict[str, Any], param: str) -> None:
    for is_streamed in (False, True):
        body = {**SETTINGS, "stream": is_streamed, **change}
        response = talkers.post("/v1/responses", **body)
        assert response.status_code == 400, response.text
        assert (response.json()["error"]["param"] or "").startswith(param)


def test_nothing_is_stored(client: openai.OpenAI) -> None:
    answer = client.responses.create(**SETTINGS, store=True)
    assert answer.model_dump()["store"] is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)
