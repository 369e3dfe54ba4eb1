"""Tools that are strict: words are free, and what begins as a call is one with valid arguments."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import jsonschema
import numpy as np
import openai
import pytest
from anthropic import Anthropic
from tokenizers import AddedToken, Tokenizer
from tooled import CLOCK, WEATHER

from qeff.apps.server.call_grammar import calls_rule, words_or_calls_rule
from qeff.apps.server.config import ServerConfig
from qeff.apps.server.grammar import Rules, combine
from qeff.apps.server.question import Question, ToolUse, Use, asked_of
from qeff.container import Container
from qeff.generate import Constraint, SamplingParams, Text
from qeff.generate.fields import AnswerFormat, split

SCHEMAS = {"weather": WEATHER, "clock": CLOCK}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
STRICT = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
ASKED = [{"role": "user", "content": "the sun"}]
GOOD = '{"name": "clock", "arguments": {"zone": "UTC"}}'
BAD = '{"name": "clock", "arguments": {"zone": "PST"}}'
WORDS = ("", "It is late.", "a < b, <tool>, <tool_cal and {}", '{"zone": "UTC"} is my answer')


def call(text: str) -> str:
    return f"<tool_call>\n{text}\n</tool_call>"


@pytest.fixture(scope="module")
def client(talkers: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{talkers.url}/v1", api_key="none", max_retries=0)


def fits(text: Any, constraint: Constraint, answer: str) -> bool:
    """Whether an answer may be made, and end there."""
    matcher = text.matcher(constraint, text.vocab_size, text.eos_ids)
    ids = text.encode(answer, add_special_tokens=False)
    if matcher.allows(ids) < len(ids):
        return False
    for token in ids:
        matcher.accept(token)
    return bool(matcher.is_satisfied)


async def constraint_of(talkers: Any, model: str, **settings: Any) -> tuple[Any, Any]:
    """The model's text, and what an answer to such a question must follow."""
    question = Question(
        messages=ASKED, params=SamplingParams(max_tokens=8), tools=TOOLS, **settings
    )
    async with talkers.state.models.use(model) as served:
        asked = await asked_of(served, question, ServerConfig())
        return served.text, asked.constraint


def test_words_are_free_and_calls_are_valid(talkers: Any, client: Any) -> None:
    client.chat.completions.create(model="tooled", messages=ASKED, max_tokens=1)  # opens it
    text, rule = asyncio.run(constraint_of(talkers, "tooled", strict=frozenset(SCHEMAS)))
    for words in WORDS:
        assert fits(text, rule, words), words
        assert fits(text, rule, words + call(GOOD)), words
        assert not fits(text, rule, words + call(BAD)), words
        assert not fits(text, rule, words + "<tool_call>"), words
        assert not fits(text, rule, words + call(GOOD.replace("clock", "moon"))), words
    assert fits(text, rule, "Both:\n" + call(GOOD) + "\n" + call(GOOD))
    assert not fits(text, rule, call(GOOD) + "\n" + call(BAD))
    fenced = "```json\n%s\n```"
    for form in ("%s", fenced, "```\n%s\n```"):  # some models forget their markers
        assert fits(text, rule, form % GOOD) and not fits(text, rule, form % BAD), form
        assert fits(text, rule, form % '{"zone": "PST"}'), form
    assert fits(text, rule, fenced % json.dumps(json.loads(GOOD), indent=2))


def test_a_single_call(talkers: Any) -> None:
    use = ToolUse(Use.AUTO, None, is_single=True)
    strict = frozenset(SCHEMAS)
    text, rule = asyncio.run(constraint_of(talkers, "tooled", strict=strict, tool_use=use))
    assert fits(text, rule, call(GOOD)) and not fits(text, rule, call(GOOD) + call(GOOD))


def test_tools_that_are_not_strict_take_any_object(talkers: Any) -> None:
    text, rule = asyncio.run(constraint_of(talkers, "tooled", strict=frozenset({"weather"})))
    assert fits(text, rule, call(BAD))
    weather = '{"name": "weather", "arguments": {"city": "Rome", "days": %d}}'
    assert fits(text, rule, call(weather % 9)) and not fits(text, rule, call(weather % 10))
    _, none = asyncio.run(constraint_of(talkers, "tooled"))
    assert none is None, "nothing is strict: nothing is followed"
    hidden = ToolUse(Use.AUTO, frozenset({"clock"}))
    strict = frozenset({"weather"})
    _, none = asyncio.run(constraint_of(talkers, "tooled", strict=strict, tool_use=hidden))
    assert none is None, "the strict one may not be called"


def test_thoughts_come_first(talkers: Any, client: Any) -> None:
    client.chat.completions.create(model="thinking", messages=ASKED, max_tokens=1)
    text, rule = asyncio.run(constraint_of(talkers, "thinking", strict=frozenset(SCHEMAS)))
    for answer in ("Hello.", "<think>hm</think>Hello.", "<think>hm</think>\n" + call(GOOD)):
        assert fits(text, rule, answer), answer
    assert not fits(text, rule, "<think>hm</think>\n" + call(BAD))


TEMPLATES = {
    "sections": "<|tool_call_begin|><|tool_calls_section_begin|>",
    "deepseek": "<｜tool▁call▁begin｜>",
    "functions": "<tool_call>{}<function=",
    "keys": "<tool_call><arg_key>",
    "llama": '<|python_tag|> "parameters": ',
    "list": "<TOOLCALL>",
    "mistral": "[TOOL_CALLS]",
    "plain": "<function=",
}
CALLS = {
    "sections": "<|tool_calls_section_begin|><|tool_call_begin|>functions.clock:0"
    '<|tool_call_argument_begin|>{"zone": "ZONE"}<|tool_call_end|><|tool_calls_section_end|>',
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>clock\n```json\n"
    '{"zone": "ZONE"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "functions": "<tool_call>\n<function=clock>\n<parameter=zone>\nZONE\n</parameter>\n</function>"
    "\n</tool_call>",
    "keys": "<tool_call>clock\n<arg_key>zone</arg_key>\n<arg_value>ZONE</arg_value>\n</tool_call>",
    "llama": '{"name": "clock", "parameters": {"zone": "ZONE"}}',
    "list": '<TOOLCALL>[{"name": "clock", "arguments": {"zone": "ZONE"}}]</TOOLCALL>',
    "mistral": '[TOOL_CALLS][{"name": "clock", "arguments": {"zone": "ZONE"}}]',
    "plain": '<function=clock>{"zone": "ZONE"}</function>',
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_way_to_write_a_call(talkers: Any, name: str) -> None:
    text, _ = asyncio.run(constraint_of(talkers, "tooled"))
    form = AnswerFormat.from_template(TEMPLATES[name])
    rules = Rules(text)
    start = words_or_calls_rule(rules, form.calls, SCHEMAS, is_single=False)
    rule = Constraint.grammar(rules.source(start))
    good, bad = (CALLS[name].replace("ZONE", zone) for zone in ("UTC", "PST"))
    assert fits(text, rule, "Just words.")
    assert fits(text, rule, good) and not fits(text, rule, bad)
    if name != "llama":  # whose calls are the whole answer
        assert fits(text, rule, f"Wait. {good}") and not fits(text, rule, f"Wait. {bad}")
    (found,) = split(good, form, SCHEMAS).calls
    assert (found.name, json.loads(found.arguments)) == ("clock", {"zone": "UTC"})


def test_a_model_that_is_told_of_tools_in_words(talkers: Any) -> None:
    text, _ = asyncio.run(constraint_of(talkers, "tooled"))
    form = AnswerFormat.from_template("no template for tools")
    rules = Rules(text)
    start = words_or_calls_rule(rules, form.calls, SCHEMAS, is_single=False)
    rule = Constraint.grammar(rules.source(start))
    for words in WORDS:
        assert fits(text, rule, words) and fits(text, rule, words + call(GOOD)), words
        assert not fits(text, rule, words + call(BAD)), words
    assert fits(text, rule, GOOD), "its calls may come without markers"
    assert not fits(text, rule, BAD) and not fits(text, rule, BAD + " or " + call(GOOD))


@pytest.fixture(scope="module")
def with_symbols(talker_containers: Any) -> Text:
    """A model with tokens of its own for the markers, as Qwen's have; they are not special."""
    files = dict(Container.open(talker_containers["thinking"]).text_files())
    tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode())
    marks = ("<tool_call>", "</tool_call>", "<think>", "</think>")
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in marks])
    return Text({**files, "tokenizer.json": tokenizer.to_str().encode()})


def test_markers_that_are_tokens(with_symbols: Text) -> None:
    text = with_symbols
    mark = text.tokenizer.token_to_id("<tool_call>")
    assert mark in text.symbol_ids and mark not in text.special_ids
    for make in (words_or_calls_rule, calls_rule):
        rules = Rules(text)
        calls = make(rules, text.answer_format.calls, SCHEMAS, is_single=False)
        rule = combine(text, "", calls=calls, rules=rules)
        assert rule is not None
        assert mark in text.encode(call(GOOD))
        assert fits(text, rule, call(GOOD)) and not fits(text, rule, call(BAD))
        assert fits(text, rule, "<think>hm</think>\n" + call(GOOD))
        assert fits(text, rule, "Words.") is (make is words_or_calls_rule)
        spelled = [text.encode(char)[-1] for char in call(BAD)]
        matcher = text.matcher(rule, text.vocab_size, text.eos_ids)
        assert matcher.allows(spelled) < len(spelled), "nor may it be spelled"


def test_text_that_is_called_as_a_token_can_be_written(with_symbols: Text) -> None:
    text = with_symbols
    for constraint in (
        Constraint.choice(["<tool_call>"]),
        Constraint.regex("a?<think>b"),
        Constraint.json_schema({"const": "<think></think>"}),
    ):
        matcher = text.matcher(constraint, text.vocab_size, text.eos_ids)
        written = []
        while not matcher.is_satisfied:
            for token in matcher.forced():
                matcher.accept(token)
                written.append(token)
            if matcher.is_satisfied:
                break
            (places,) = np.nonzero(np.unpackbits(matcher.mask().view(np.uint8), bitorder="little"))
            written.append(int(places[0]))
            matcher.accept(written[-1])
        assert "<t" in text.decode(written, skip_special_tokens=False)
        assert not text.symbol_ids & set(written)


@pytest.mark.parametrize("seed", range(3))
def test_the_clients_get_answers(talkers: Any, client: openai.OpenAI, seed: int) -> None:
    settings: dict[str, Any] = {"model": "tooled", "max_tokens": 24}
    choice = client.chat.completions.create(
        **settings, messages=ASKED, tools=STRICT, seed=seed
    ).choices[0]
    assert choice.message.content or choice.message.tool_calls
    for one in choice.message.tool_calls or ():
        jsonschema.validate(json.loads(one.function.arguments), SCHEMAS[one.function.name])
    tools = [{"type": "function", "name": "clock", "parameters": CLOCK, "strict": True}]
    answer = client.responses.create(
        model="tooled", input="the sun", tools=tools, max_output_tokens=8
    )
    assert answer.output
    speaker = Anthropic(base_url=talkers.url, api_key="none", max_retries=0)
    tool = {"name": "clock", "input_schema": CLOCK, "strict": True}
    assert speaker.messages.create(**settings, messages=ASKED, tools=[tool]).content


def test_a_schema_that_cannot_be_followed_is_refused(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}
    with pytest.raises(openai.BadRequestError, match="cannot be used") as caught:
        client.chat.completions.create(model="tooled", messages=ASKED, tools=[tool])
    assert caught.value.param == "tools"
    tool["function"]["strict"] = False
    assert client.chat.completions.create(
        model="tooled", messages=ASKED, tools=[tool], max_tokens=2
    ).choices


def test_the_model_is_not_shown_what_the_server_is_told(client: openai.OpenAI) -> None:
    settings: dict[str, Any] = {"model": "tooled", "messages": ASKED, "max_tokens": 1}
    used = [
        client.chat.completions.create(**settings, tools=each).usage for each in (TOOLS, STRICT)
    ]
    assert used[0] is not None and used[1] is not None
    assert used[0].prompt_tokens == used[1].prompt_tokens
