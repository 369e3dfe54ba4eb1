"""Tools: calls that are forced, streamed, answered and read back, by the official client."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import openai
import pytest
from pydantic import TypeAdapter
from tooled import CLOCK, WEATHER

from qeff.apps.server.openai.chat_shapes import Message
from qeff.apps.server.openai.conversation import template_messages
from qeff.apps.server.tool_words import in_words
from qeff.generate.fields import AnswerFormat, FieldSplitter, gather

ASKED = [{"role": "user", "content": "the sun"}]
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "clock", "parameters": CLOCK}},
]
SHAPE = TypeAdapter(list[Message])
SCHEMAS = {"weather": WEATHER, "clock": CLOCK}
SETTINGS: dict[str, Any] = {"model": "tooled", "messages": ASKED, "max_tokens": 300}


@pytest.fixture(scope="module")
def client(talkers: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{talkers.url}/v1", api_key="none", max_retries=0)


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", ["weather", "clock"])
def test_a_named_tool_is_called(client: openai.OpenAI, name: str, seed: int) -> None:
    answer = client.chat.completions.create(
        **SETTINGS, tools=TOOLS, tool_choice=named(name), seed=seed
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    (call,) = choice.message.tool_calls or ()
    assert call.type == "function" and call.id.startswith("call_")
    assert call.function.name == name
    jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[name])


@pytest.mark.parametrize("seed", range(4))
def test_required_calls_one_at_least(client: openai.OpenAI, seed: int) -> None:
    answer = client.chat.completions.create(
        **SETTINGS, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, seed=seed
    )
    (call,) = answer.choices[0].message.tool_calls or ()
    jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
    allowed = client.chat.completions.create(
        **SETTINGS,
        tools=TOOLS,
        seed=seed,
        parallel_tool_calls=False,
        tool_choice={
            "type": "allowed_tools",
            "allowed_tools": {"mode": "required", "tools": [named("clock")]},
        },
    )
    assert [one.function.name for one in allowed.choices[0].message.tool_calls or ()] == ["clock"]


def test_calls_are_streamed_by_index(client: openai.OpenAI) -> None:
    settings = {**SETTINGS, "tools": TOOLS, "tool_choice": named("weather"), "seed": 4}
    whole = client.chat.completions.create(**settings).choices[0].message.tool_calls or []
    chunks = list(client.chat.completions.create(**settings, stream=True))
    pieces = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    first, *rest = pieces
    assert first.index == 0 and first.id is not None and first.type == "function"
    assert first.function is not None and first.function.name == "weather"
    assert {piece.index for piece in rest} == {0} and {piece.id for piece in rest} == {None}
    assert len(rest) > 3  # arguments come as they are made
    joined = "".join(piece.function.arguments or "" for piece in rest if piece.function)
    assert joined == whole[0].function.arguments
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert not any(chunk.choices[0].delta.content for chunk in chunks)


def test_several_calls_have_ids_of_their_own(client: openai.OpenAI) -> None:
    # A grammar of two calls, since a model of random weights makes one or very many.
    call = '<tool_call>\n{"name": "clock", "arguments": {"zone": "UTC"}}\n</tool_call>'
    extra = {"guided_grammar": f"start: {json.dumps(call)} {json.dumps(call)}"}
    settings = {**SETTINGS, "tools": TOOLS, "extra_body": extra}
    calls = client.chat.completions.create(**settings).choices[0].message.tool_calls or []
    assert [one.function.name for one in calls] == ["clock", "clock"]
    assert len({one.id for one in calls}) == 2
    chunks = client.chat.completions.create(**settings, stream=True)
    found = [call.index for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert set(found) == {0, 1} and found == sorted(found)
    single = client.chat.completions.create(**settings, parallel_tool_calls=False)
    assert len(single.choices[0].message.tool_calls or ()) == 1


def test_none_calls_nothing_and_hides_the_tools(client: openai.OpenAI) -> None:
    settings = {**SETTINGS, "max_tokens": 8, "temperature": 0}
    plain = client.chat.completions.create(**settings)
    none = client.chat.completions.create(**settings, tools=TOOLS, tool_choice="none")
    assert none.choices[0].message.content == plain.choices[0].message.content
    assert none.usage is not None and plain.usage is not None
    assert none.usage.prompt_tokens == plain.usage.prompt_tokens
    auto = client.chat.completions.create(**settings, tools=TOOLS)
    assert auto.usage is not None and auto.usage.prompt_tokens > plain.usage.prompt_tokens


def test_a_call_and_its_result_go_back_to_the_template(client: openai.OpenAI, talkers: Any) -> None:
    first = client.chat.completions.create(
        **SETTINGS, tools=TOOLS, tool_choice=named("clock"), seed=1
    )
    message = first.choices[0].message
    (call,) = message.tool_calls or ()
    told = [
        *ASKED,
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "noon"},
    ]
    settings = {"model": "tooled", "messages": told, "max_tokens": 4, "tools": TOOLS}
    answer = client.chat.completions.create(**settings)
    assert answer.usage is not None
    written = f'<tool_call>\n{{"name": "clock", "arguments": {call.function.arguments}}}'
    shown = talkers.post("/tokenize", model="tooled", prompt=written)
    assert answer.usage.prompt_tokens > shown.json()["count"]


def test_a_schema_or_a_call_where_both_are_wanted(client: openai.OpenAI) -> None:
    schema = {"name": "answer", "schema": CLOCK}
    for seed in range(4):
        answer = client.chat.completions.create(
            **SETTINGS,
            tools=TOOLS,
            seed=seed,
            parallel_tool_calls=False,
            response_format={"type": "json_schema", "json_schema": schema},
        )
        message = answer.choices[0].message
        if message.content:
            jsonschema.validate(json.loads(message.content), CLOCK)
        for call in message.tool_calls or ():
            jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
        assert message.content or message.tool_calls


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tool_choice": named("other")}, "tool_choice"),
        ({"tools": [*TOOLS, TOOLS[0]]}, "tools"),
        ({"tools": []}, "tool_choice"),
        ({"tool_choice": {"type": "custom"}}, "tool_choice"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 5}}]}, "tools[0]"),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "parameters": {"not": {"type": "string"}}},
                    }
                ]
            },
            "tools",
        ),
    ],
)
def test_mistakes(talkers: Any, change: dict[str, Any], param: str) -> None:
    body = {**SETTINGS, "tools": TOOLS, "tool_choice": "required", **change}
    response = talkers.post("/v1/chat/completions", **body)
    assert response.status_code == 400, response.text
    assert (response.json()["error"]["param"] or "").startswith(param)


def test_templates_without_tools_are_told_in_words(client: openai.OpenAI, talkers: Any) -> None:
    """The tiny model's template shows roles and contents alone."""
    call = {"id": "c", "function": {"name": "clock", "arguments": '{"zone": "UTC"}'}}
    messages = [
        *ASKED,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "noon"},
        {"role": "tool", "tool_call_id": "d", "content": "one"},
    ]
    shown = in_words(template_messages(SHAPE.validate_python(messages)), TOOLS[1:])
    assert [message["role"] for message in shown] == ["system", "user", "assistant", "user"]
    assert json.dumps(TOOLS[1]["function"]) in shown[0]["content"]
    assert shown[2]["content"] == (
        '<tool_call>\n{"name": "clock", "arguments": {"zone": "UTC"}}\n</tool_call>'
    )
    assert shown[3]["content"] == (
        "<tool_response>\nnoon\n</tool_response>\n<tool_response>\none\n</tool_response>"
    )
    answers = FieldSplitter(AnswerFormat.from_template(None), {"clock": CLOCK})
    pieces = [*answers.push(shown[2]["content"]), *answers.flush()]
    assert gather(pieces).calls[0].name == "clock"  # what is shown is what is read
    counts = [
        talkers.post("/v1/messages/count_tokens", model="tiny", messages=ASKED, **more).json()
        for more in ({}, {"tools": [{"name": "clock", "input_schema": CLOCK}]})
    ]
    assert counts[1]["input_tokens"] > counts[0]["input_tokens"] + 100
    settings = {**SETTINGS, "model": "tiny", "max_tokens": 2}
    plain = client.chat.completions.create(**settings, tools=TOOLS, tool_choice="none")
    assert plain.usage is not None and plain.usage.prompt_tokens == counts[0]["input_tokens"]
