"""Output that has to fit: every way to ask for it, alone and after a model's thoughts."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel
from tooled import CLOCK, WEATHER

from qeff.apps.server.call_grammar import calls_rule
from qeff.apps.server.grammar import Rules, combine
from qeff.generate import Constraint, Text
from qeff.generate.fields import AnswerFormat, split

ASKED = [{"role": "user", "content": "is"}]
SETTINGS: dict[str, Any] = {"model": "tiny", "messages": ASKED, "max_tokens": 200}


@pytest.fixture(scope="module")
def client(talkers: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{talkers.url}/v1", api_key="none", max_retries=0)


def ask(client: openai.OpenAI, **more: Any) -> str:
    answer = client.chat.completions.create(**{**SETTINGS, **more})
    return answer.choices[0].message.content or ""


@pytest.mark.parametrize(
    "given",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": CLOCK}}},
        {"response_format": {"type": "json_object", "schema": CLOCK}},
        {"guided_json": CLOCK},
        {"guided_json": json.dumps(CLOCK)},
        {"structured_outputs": {"json": CLOCK}},
        {"json_schema": CLOCK},
    ],
)
def test_a_schema_by_every_name(client: openai.OpenAI, given: dict[str, Any]) -> None:
    jsonschema.validate(json.loads(ask(client, extra_body=given, seed=1)), CLOCK)


@pytest.mark.parametrize(
    ("given", "pattern"),
    [
        ({"guided_regex": "[a-c]{3}"}, "[a-c]{3}"),
        ({"structured_outputs": {"regex": "a/b|c"}}, "a/b|c"),
        ({"guided_choice": ["yes", "no"]}, "yes|no"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
        ({"guided_grammar": 'start: "x" | "y"'}, "[xy]"),
        ({"grammar": 'root ::= "x" | "y"'}, "[xy]"),
    ],
)
def test_patterns_choices_and_grammars(
    client: openai.OpenAI, given: dict[str, Any], pattern: str
) -> None:
    assert re.fullmatch(pattern, ask(client, extra_body=given))


def test_any_object(client: openai.OpenAI) -> None:
    told = ask(client, response_format={"type": "json_object"}, temperature=0, max_tokens=60)
    assert told.startswith("{")
    assert ask(client, response_format={"type": "text"}, temperature=0) == ask(
        client, temperature=0
    )


def test_completions_take_them_too(talkers: Any) -> None:
    body = {"model": "tiny", "prompt": "is", "guided_choice": ["Rome", "Oslo"]}
    assert talkers.post("/v1/completions", **body).json()["choices"][0]["text"] in ("Rome", "Oslo")


def test_thoughts_come_before_what_is_constrained(client: openai.OpenAI) -> None:
    thoughtful = {"chat_template_kwargs": {"enable_thinking": True}}
    grammar = {"guided_grammar": 'start: "the sun</think>\\n\\nrises"'}
    settings = {**SETTINGS, "model": "thinking", "extra_body": {**thoughtful, **grammar}}
    message = client.chat.completions.create(**settings).choices[0].message
    assert message.content == "rises"
    assert message.reasoning_content == message.reasoning == "the sun"
    pieces = [
        chunk.choices[0].delta for chunk in client.chat.completions.create(**settings, stream=True)
    ]
    thoughts = "".join(getattr(delta, "reasoning_content", None) or "" for delta in pieces)
    assert thoughts == "the sun"
    assert "".join(delta.content or "" for delta in pieces) == "rises"


def test_thoughts_go_back_to_the_template(client: openai.OpenAI) -> None:
    def count(**more: str) -> int:
        answer = {"role": "assistant", "content": "so", **more}
        usage = client.chat.completions.create(
            model="thinking", messages=[*ASKED, answer, *ASKED], max_tokens=1
        ).usage
        assert usage is not None
        return usage.prompt_tokens

    assert count(reasoning_content="the flat earth") > count()
    assert count(reasoning_content="the flat earth") == count(reasoning="the flat earth")


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_regex": "a" * 40_000}, "guided_regex"),
        ({"guided_json": {"enum": ["x" * 140_000]}}, "guided_json"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "5"}, "guided_json"),
        ({"guided_json": '{"enum": ["\\ud800"]}'}, "guided_json"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a"], "guided_regex": "b"}, "guided_choice"),
        ({"guided_grammar": "start: other"}, "guided_grammar"),
        ({"guided_json": {"type": "nothing"}}, "guided_json"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex"),
    ],
)
def test_definitions_that_make_no_sense(
    talkers: Any, given: dict[str, Any], param: str | None
) -> None:
    for model in ("tiny", "thinking"):
        response = talkers.post("/v1/chat/completions", **{**SETTINGS, **given, "model": model})
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["param"] == param and "\n" not in error["message"]


# How templates of known models write calls; what is looked for is the marker that names the form.
FORMS = {
    "tagged": "<tool_call>",
    "bare": "<|python_tag|>",
    "list": "[TOOL_CALLS]",
    "wrapped list": "<TOOLCALL>",
    "sections": "<｜tool▁call▁begin｜>",
    "numbered": "<|tool_call_begin|>",
    "function": "<function=",
    "parameters": "<tool_call> <function=",
    "keys": "<arg_key>",
    "unknown": "nothing",
}


@pytest.fixture(scope="module")
def text(tiny_folder: Any) -> Text:
    return Text({path.name: path.read_bytes() for path in tiny_folder.glob("*.json")})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_single", [True, False])
def test_forced_calls_are_read_back(text: Text, form: str, is_single: bool) -> None:
    """Walk the grammar of each form at random; what was written is read as calls of the schemas."""
    import numpy as np

    schemas = {"weather": WEATHER, "clock": CLOCK}
    answers = AnswerFormat.from_template(FORMS[form])
    rules = Rules(text)
    calls = calls_rule(rules, answers.calls, schemas, is_single=is_single)
    constraint = combine(text, "", calls=calls, rules=rules)
    assert constraint is not None
    for seed in range(3):
        random = np.random.default_rng(seed)
        written = walk(text, constraint, random)
        answer = split(written, answers, schemas)
        assert answer.content == "" and answer.calls, written
        for call in answer.calls:
            assert call.is_whole
            jsonschema.validate(json.loads(call.arguments), schemas[call.name])
        assert len(answer.calls) == 1 or not is_single


def test_thoughts_are_allowed_before_calls(text: Text) -> None:
    thinking = Text({**_files(text), "chat_template.jinja": b"<think></think><tool_call>"})
    syntax = thinking.answer_format.calls
    call = '<tool_call>\n{"name": "clock", "arguments": {"zone": "UTC"}}\n</tool_call>'
    for ending, written, fits in (
        ("<assistant>", call, True),
        ("<assistant>", f"<think>is it?</think>\n\n{call}", True),
        ("<assistant>", f"it is. {call}", False),
        ("<assistant><think>\n", f"is it?</think>{call}", True),
        ("<assistant><think>\n", "is it?", None),
    ):
        rules = Rules(thinking)
        calls = calls_rule(rules, syntax, {"clock": CLOCK}, is_single=True)
        constraint = combine(thinking, ending, calls=calls, rules=rules)
        assert constraint is not None
        matcher = thinking.matcher(constraint, thinking.vocab_size, frozenset(thinking.eos_ids))
        ids = thinking.encode(written, add_special_tokens=False)
        num_fitting = matcher.allows(ids)
        assert (num_fitting == len(ids)) is (fits is not False)
        if fits is None:
            assert not matcher.is_satisfied


def test_constraints_of_every_kind_after_thoughts(text: Text) -> None:
    thinking = Text({**_files(text), "chat_template.jinja": b"<think></think>"})
    for constraint, written in (
        (Constraint.json_object(), '{"a": 1}'),
        (Constraint.json_schema(CLOCK), '{"zone": "CET"}'),
        (Constraint.regex("a/b\\d"), "a/b5"),
        (Constraint.choice(["yes", 'n"o']), 'n"o'),
    ):
        wrapped = combine(thinking, "<think>", constraint=constraint)
        assert wrapped is not None
        matcher = thinking.matcher(wrapped, thinking.vocab_size, frozenset(thinking.eos_ids))
        for token in thinking.encode(f"hm\n</think>\n{written}", add_special_tokens=False):
            assert matcher.allows([token]) == 1, written
            matcher.accept(token)
        assert matcher.is_satisfied
    assert combine(text, "", constraint=Constraint.json_object()) == Constraint.json_object()


def walk(text: Text, constraint: Constraint, random: Any) -> str:
    """A random text of a constraint."""
    import numpy as np

    matcher = text.matcher(constraint, text.vocab_size, frozenset(text.eos_ids))
    ids: list[int] = []
    while not matcher.is_finished and len(ids) < 5000:
        mask = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
        allowed = np.flatnonzero(mask)
        token = int(random.choice(allowed))
        if matcher.is_satisfied:  # end where that is possible
            break
        matcher.accept(token)
        ids.append(token)
    assert matcher.is_satisfied
    return text.decode(ids)


def _files(text: Text) -> dict[str, bytes]:
    config = {"eos_token": "</s>", "bos_token": "<s>"}
    return {
        "tokenizer.json": text.tokenizer.to_str().encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
    }


class Answer(BaseModel):
    """What the client's own reader makes a schema of."""

    zone: Literal["UTC", "CET"]
    is_late: bool


def test_the_clients_own_readers(client: openai.OpenAI) -> None:
    parsed = client.chat.completions.parse(**SETTINGS, response_format=Answer)
    assert isinstance(parsed.choices[0].message.parsed, Answer)
    with client.chat.completions.stream(**SETTINGS, response_format=Answer, seed=1) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert isinstance(final.choices[0].message.parsed, Answer)
    response = client.responses.parse(model="tiny", input="is", text_format=Answer)
    assert isinstance(response.output_parsed, Answer)
    tool = {"name": "clock", "parameters": CLOCK, "strict": True}
    with client.chat.completions.stream(
        **{**SETTINGS, "model": "tooled"},
        tools=[{"type": "function", "function": tool}],
        tool_choice={"type": "function", "function": {"name": "clock"}},
    ) as stream:
        kinds = {event.type for event in stream}
        (call,) = stream.get_final_completion().choices[0].message.tool_calls or ()
    assert "tool_calls.function.arguments.delta" in kinds
    assert call.function.parsed_arguments["zone"] in ("UTC", "CET")


@pytest.mark.parametrize("ending", ["", "<think>"])
def test_markers_that_are_special_tokens(text: Text, ending: str) -> None:
    marks = ["<tool_call>", "</tool_call>", "</think>"]
    tokenizer = json.loads(text.tokenizer.to_str())
    first = text.vocab_size
    shape = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokenizer["added_tokens"] += [
        {"id": first + index, "content": mark, "special": True, **shape}
        for index, mark in enumerate(marks)
    ]
    template = b"<tool_call><think></think>" if ending else b"<tool_call>"
    files = {**_files(text), "chat_template.jinja": template}
    special = Text({**files, "tokenizer.json": json.dumps(tokenizer).encode()})
    assert special.vocab_size == first + 3
    rules = Rules(special)
    syntax = special.answer_format.calls
    calls = calls_rule(rules, syntax, {"clock": CLOCK}, is_single=True)
    constraint = combine(special, ending, calls=calls, rules=rules)
    assert constraint is not None
    matcher = special.matcher(constraint, special.vocab_size, frozenset(special.eos_ids))
    call = '<tool_call>\n{"name": "clock", "arguments": {"zone": "UTC"}}\n</tool_call>'
    written = f"is it?</think>\n{call}" if ending else call
    ids = special.encode(written, add_special_tokens=False)
    assert ids.count(first) == 1  # the marker is one token
    assert matcher.allows(ids) == len(ids)
    for token in ids:
        matcher.accept(token)
    assert matcher.is_satisfied
