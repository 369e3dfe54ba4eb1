"""Answers split into fields: whole, cut anywhere, and beside transformers' own parser."""

from __future__ import annotations

import json
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qeff.generate.fields import (
    GENERIC,
    Answer,
    AnswerFormat,
    Field,
    FieldSplitter,
    Piece,
    ToolCall,
    gather,
    split,
)

TOOLS = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    },
    "stop": {"type": "object", "properties": {}},
}
# What stands in templates of the kinds that there are; only the markers count.
TEMPLATES = {
    "plain": "{% for m in messages %}{{ m.content }}{% endfor %}",
    "tagged": 'return <tool_call>\\n{\\"name\\": ...}</tool_call> {{ m.split("</think>")[-1] }}',
    "llama": "{{- '<|python_tag|>' + tool_call.name }}{{- '{\"name\": \"' }}",
    "parameters": """{{- '{"name": "' + call.name + '", ' }}{{- '"parameters": ' }}""",
    "mistral": '{{ "[TOOL_CALLS] [" }}{{ "[THINK]" + thinking + "[/THINK]" }}',
    "deepseek": "{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'}}{{'</think>'}}",
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>{{ id }}",
    "functions": "<tool_call>\n<function=name>\n<parameter=key>\nvalue\n</parameter></think>",
    "keys": "<tool_call>{{ name }}<arg_key>{{ k }}</arg_key></think>",
    "granite": "<|tool_call|>[...]",
    "toolcall": "<TOOLCALL>[...]</TOOLCALL></think>",
    "attribute": "<function=name>{...}</function>",
    "cohere": "<|START_THINKING|><|END_THINKING|><|START_ACTION|>",
}
FORMATS = {name: AnswerFormat.from_template(text) for name, text in TEMPLATES.items()}
PARIS, STOP = '{"city": "Paris", "days": 2}', "{}"


def call(arguments: str = PARIS, name: str = "get_weather", is_whole: bool = True) -> ToolCall:
    return ToolCall(name, arguments, is_whole)


CASES = [  # (format, answer, its fields)
    ("plain", "  <b> Hello {x}\n ", Answer("  <b> Hello {x}\n ")),
    ("plain", '{"name": "Bob", "arguments": 3}', Answer('{"name": "Bob", "arguments": 3}')),
    ("plain", f'{{"name": "get_weather", "arguments": {PARIS}}}', Answer(calls=(call(),))),
    ("plain", f'[{{"name": "get_weather", "arguments": {PARIS}}}]', Answer(calls=(call(),))),
    ("tagged", f'{{"name": "get_weather", "arguments": {PARIS}}}', Answer(calls=(call(),))),
    (
        "tagged",
        f'```json\n{{\n  "name": "get_weather",\n  "arguments": {PARIS}\n}}\n```\n',
        Answer(calls=(call(),)),
    ),
    ("plain", '```\n{"name": "stop", "arguments": {}}\n```', Answer(calls=(call(STOP, "stop"),))),
    ("tagged", '```json\n{"name": "Bob"}\n```', Answer('```json\n{"name": "Bob"}\n```')),
    ("tagged", "```python\nprint({})\n```", Answer("```python\nprint({})\n```")),
    ("tagged", "```js", Answer("```js")),
    (
        "functions",
        f'```json\n{{"name": "get_weather", "arguments": {PARIS}}}\n```',
        Answer(f'```json\n{{"name": "get_weather", "arguments": {PARIS}}}\n```'),
    ),
    ("plain", f'{{"name": "other", "arguments": {PARIS}}}',
     Answer(f'{{"name": "other", "arguments": {PARIS}}}')),
    ("plain", "<think>not in the template</think>", Answer("<think>not in the template</think>")),
    ("plain", "", Answer()),
    ("tagged", "<think>\nhm\n</think>\n\nYes. ", Answer("Yes. ", "hm")),
    ("tagged", "<think></think>Yes", Answer("Yes")),
    ("tagged", "<think>cut off", Answer("", "cut off")),
    ("tagged", "Say <think> twice", Answer("Say <think> twice")),
    ("tagged", f'<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>',
     Answer(calls=(call(),))),
    ("tagged", f'<think>a</think>Look.\n<tool_call>{{"arguments": {PARIS}, "name": "get_weather"}}'
     '</tool_call>\n<tool_call>\n{"name": "stop"}\n</tool_call>', Answer("Look.", "a",
                                                                   (call(), call(STOP, "stop")))),
    ("tagged", '<tool_call>[{"name": "stop", "arguments": null}, {"name": "x", "arguments": '
     '"{\\"a\\": 1}"}]</tool_call>', Answer(calls=(call(STOP, "stop"), call('{"a": 1}', "x")))),
    ("tagged", '<tool_call>{"type": "function", "function": {"name": "stop", "parameters": {}}}'
     "</tool_call>done", Answer("done", calls=(call(STOP, "stop"),))),
    ("tagged", "A <tool_call>no call</tool_call> B", Answer("A <tool_call>no callB")),
    ("tagged", 'A <tool_call>{"name": 3}</tool_call>', Answer('A <tool_call>{"name": 3}')),
    ("tagged", '<tool_call>{"name": "stop", "argu', Answer(calls=(call("", "stop", False),))),
    ("tagged", '<tool_call>{"name": "stop", "arguments": {"a": [1, "}',
     Answer(calls=(call('{"a": [1, "}', "stop", False),))),
    ("tagged", '<tool_call>{"na', Answer('<tool_call>{"na')),
    ("tagged", "2 < 3 <tool_ca", Answer("2 < 3 <tool_ca")),
    ("tagged", '<tool_call>{"name": "x", "arguments": {"a": "\\"}</tool_call>"}}</tool_call>',
     Answer(calls=(call('{"a": "\\"}</tool_call>"}', "x"),))),
    ("llama", f'{{"name": "get_weather", "parameters": {PARIS}}}', Answer(calls=(call(),))),
    ("llama", f'{{"name": "get_weather", "parameters": {PARIS}}}; {{"type": "function", "name": '
     '"stop", "parameters": {}}', Answer(calls=(call(), call(STOP, "stop")))),
    ("llama", f'<|python_tag|>{{"name": "get_weather", "parameters": {PARIS}}}',
     Answer(calls=(call(),))),
    ("llama", "<|python_tag|>print(1)", Answer("<|python_tag|>print(1)")),
    ("llama", '{"name": "stop"} is JSON', Answer('{"name": "stop"} is JSON')),
    ("llama", '{"a": {"b": [1, 2]}}', Answer('{"a": {"b": [1, 2]}}')),
    ("llama", 'Call {"name": "stop", "parameters": {}}',
     Answer('Call {"name": "stop", "parameters": {}}')),
    ("llama", "{not json} [1]", Answer("{not json} [1]")),
    ("parameters", '{"name": "stop", "parameters": {}}', Answer(calls=(call(STOP, "stop"),))),
    ("mistral", f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {PARIS}, "id": "ab"}}]',
     Answer(calls=(call(),))),
    ("mistral", f"[THINK]a[/THINK][TOOL_CALLS]get_weather[ARGS]{PARIS}[TOOL_CALLS]stop{{}}",
     Answer("", "a", (call(), call(STOP, "stop")))),
    ("mistral", f"Ok.[TOOL_CALLS]get_weather[CALL_ID]a1[ARGS]{PARIS}",
     Answer("Ok.", calls=(call(),))),
    ("deepseek", "Ok\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>"
     f"get_weather\n```json\n{PARIS}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>stop<｜tool▁sep｜>{{}}"
     "<｜tool▁call▁end｜><｜tool▁calls▁end｜>", Answer("Ok", calls=(call(), call(STOP, "stop")))),
    ("kimi", "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
     f"<|tool_call_argument_begin|>{PARIS}<|tool_call_end|><|tool_calls_section_end|>",
     Answer(calls=(call(),))),
    ("functions", "<think>\na\n</think>\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\n"
     "Paris\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
     Answer("", "a", (call(),))),
    ("functions", "<tool_call>\n<function=stop>\n</function>\n</tool_call>",
     Answer(calls=(call(STOP, "stop"),))),
    ("functions", "<tool_call><function=get_weather><parameter=city>a\n<b>1 > 0</b></parameter>"
     "<parameter=days>two</parameter></function></tool_call>",
     Answer(calls=(call('{"city": "a\\n<b>1 > 0</b>", "days": "two"}'),))),
    ("functions", "<tool_call><function=get_weather><parameter=city>Par",
     Answer(calls=(call("", is_whole=False),))),
    ("keys", "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
     "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>stop\n</tool_call>",
     Answer(calls=(call(), call(STOP, "stop")))),
    ("granite", f'<|tool_call|>[{{"name": "get_weather", "arguments": {PARIS}}}]',
     Answer(calls=(call(),))),
    ("toolcall", f'a<TOOLCALL>[{{"name": "get_weather", "arguments": {PARIS}}}]</TOOLCALL>',
     Answer("a", calls=(call(),))),
    ("attribute", f"<function=get_weather>{PARIS}</function>", Answer(calls=(call(),))),
    ("cohere", "<|START_THINKING|>a<|END_THINKING|><|START_ACTION|>[\n  {\"tool_call_id\": \"0\", "
     f'"tool_name": "get_weather", "parameters": {PARIS}}}\n]<|END_ACTION|>',
     Answer("", "a", (call(),))),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(CASES)))
def test_a_whole_answer_is_split(index):
    name, text, expected = CASES[index]
    assert split(text, FORMATS[name], TOOLS) == expected
    for one in expected.calls:
        assert not one.is_whole or isinstance(json.loads(one.arguments), dict)


def in_pieces(text: str, cuts: list[int], form: AnswerFormat, prompt: str = "") -> Answer:
    splitter, pieces = FieldSplitter(form, TOOLS, prompt), []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        pieces += splitter.push(text[start:end])
    return gather([*pieces, *splitter.flush()])


@pytest.mark.parametrize("index", range(len(CASES)))
def test_the_cuts_do_not_matter(index):
    name, text, expected = CASES[index]
    assert in_pieces(text, list(range(1, len(text))), FORMATS[name]) == expected
    rng = random.Random(index)
    for _ in range(30):
        cuts = sorted(rng.sample(range(len(text) + 1), min(len(text), rng.randint(0, 6))))
        assert in_pieces(text, cuts, FORMATS[name]) == expected


MARKERS = sorted(set().union(*(form.markers for form in FORMATS.values())))
FRAGMENTS = st.one_of(
    st.sampled_from(MARKERS),
    st.tuples(st.sampled_from(MARKERS), st.integers(1, 9)).map(lambda pair: pair[0][: pair[1]]),
    st.sampled_from([" ", "\n", "\n\n", "\x0b", "\u00a0", "{", "}", "[", "]", ",", ";", '"', "\\"]),
    st.sampled_from(["Hello", "é🙂", "<", ">", "stop", '"name": "stop"', '"arguments": {}']),
    st.sampled_from([text for _, text, _ in CASES]),
    st.sampled_from([
        '{"name": "stop", "arguments": {}}', '{"name": "stop", "parameters": {"a": "}"}}',
        "<function=stop>", "<parameter=a>1</parameter>", "</function>", "[ARGS]", "12", "null",
    ]),
    st.text("<>{}[]\"\\ab ", max_size=4),
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(sorted(FORMATS)),
    st.lists(FRAGMENTS, max_size=8).map("".join),
    st.data(),
    st.sampled_from(["", "<|im_start|>assistant\n<think>\n"]),
)
def test_random_answers_cut_anywhere_are_those_of_the_whole(name, text, data, prompt):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=10)))
    whole = split(text, FORMATS[name], TOOLS, prompt)
    assert in_pieces(text, cuts, FORMATS[name], prompt) == whole
    assert in_pieces(text, list(range(len(text))), FORMATS[name], prompt) == whole


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(FORMATS)), st.text('<>{}[]"\\ab \n', max_size=30))
def test_without_markers_every_character_is_content(name, text):
    assert split(text, FORMATS[name], TOOLS) == Answer(text)
    assert split(text, FORMATS[name]) == Answer(text)


def test_without_tools_calls_are_content():
    text = '<think>a</think><tool_call>{"name": "stop"}</tool_call>'
    expected = Answer('<tool_call>{"name": "stop"}</tool_call>', "a")
    assert split(text, FORMATS["tagged"]) == expected
    assert split('{"name": "stop", "parameters": {}}', FORMATS["llama"]).calls == ()


def test_pieces_come_as_early_as_they_are_certain():
    splitter = FieldSplitter(FORMATS["tagged"], TOOLS)
    steps = [
        ("<thi", []),
        ("nk>\nLet", [Piece(Field.REASONING, "Let")]),
        (" me. </", [Piece(Field.REASONING, " me.")]),
        ("b> </think>", [Piece(Field.REASONING, " </b>")]),
        ("\n\n", []),
        ("Sure", [Piece(Field.CONTENT, "Sure")]),
        (", a < b", [Piece(Field.CONTENT, ", a < b")]),
        ("\n<tool", []),
        ('_call>{"name": "sto', []),
        ('p", "arg', [Piece(Field.CALL, "stop")]),
        ('uments": {"a": ', [Piece(Field.ARGUMENTS, '{"a": ')]),
        ("[1, 2", [Piece(Field.ARGUMENTS, "[1, 2")]),
        ("]}", [Piece(Field.ARGUMENTS, "]}")]),
        ("}", [Piece(Field.CALL_END)]),
        ("\n</tool_call>", []),
    ]
    for text, expected in steps:
        assert splitter.push(text) == expected, text
    assert splitter.flush() == []


def test_a_model_without_markers_is_not_held_back():
    splitter = FieldSplitter(AnswerFormat())
    for text in (" ", "a ", "<", "tool", "\n"):
        assert splitter.push(text) == [Piece(Field.CONTENT, text)]
    assert splitter.flush() == []


def test_json_that_is_no_call_is_not_held_back():
    splitter = FieldSplitter(FORMATS["llama"], TOOLS)
    assert splitter.push('{"title": ') == [Piece(Field.CONTENT, '{"title":')]
    assert splitter.push('"a"') == [Piece(Field.CONTENT, ' "a"')]


def test_hostile_answers_are_split_quickly():
    begun = time.perf_counter()
    for text in (
        "<tool_call>" * 1000,
        '<tool_call>{"id": ' + "[" * 8000 + "]" * 8000,
        '<tool_call>{"name": "stop", "arguments": ' + "[" * 8000,
        '{"id": "' + "a" * 8000,
        "<think>" * 1000 + "</think>" * 1000,
    ):
        for form in ("tagged", "llama", "functions"):
            splitter = FieldSplitter(FORMATS[form], TOOLS)
            for start in range(0, len(text), 4):
                splitter.push(text[start : start + 4])
            splitter.flush()
            split(text, FORMATS[form], TOOLS)
    assert time.perf_counter() - begun < 20


def test_the_prompt_may_begin_the_reasoning():
    prompt, form = "<|im_start|>assistant\n<think>\n", FORMATS["tagged"]
    assert split("hm\n</think>\n\nYes", form, prompt=prompt) == Answer("Yes", "hm")
    assert split("<think>hm</think>Yes", form, prompt=prompt) == Answer("Yes", "hm")
    assert split("hm</think>Yes", form, prompt="a <think> b") == Answer("hm</think>Yes")


def test_formats_are_found_by_what_the_template_holds():
    assert FORMATS["plain"] == AnswerFormat(None, GENERIC)
    assert AnswerFormat.from_template(None) == FORMATS["plain"]
    assert FORMATS["tagged"].markers == {"<think>", "</think>", "<tool_call>", "</tool_call>"}
    assert FORMATS["mistral"].reasoning == ("[THINK]", "[/THINK]")
    declared = {
        "fields": {
            "thinking": {"open": "<|channel>thought\n", "close": "<channel|>"},
            "tool_calls": {"open": "<call>", "close": "</call>", "content": "json"},
        }
    }
    form = AnswerFormat.from_template(TEMPLATES["tagged"], declared)
    assert form.markers == {"<|channel>thought", "<channel|>", "<call>", "</call>"}
    text = '<|channel>thought\nhm<channel|>Ok<call>{"name": "stop"}</call>'
    assert split(text, form, TOOLS) == Answer("Ok", "hm", (call(STOP, "stop"),))
    patterns = {"fields": {"tool_calls": {"open_pattern": "<call.*>", "content": "json"}}}
    assert AnswerFormat.from_template(TEMPLATES["tagged"], patterns) == FORMATS["tagged"]


def test_transformers_parser_finds_the_same():
    chat_parsing = pytest.importorskip("transformers.utils.chat_parsing")
    declared = {
        "defaults": {"role": "assistant"},
        "start_anchor": "assistant\n",
        "fields": {
            "reasoning_content": {"open": "<think>", "close": "</think>", "content": "text"},
            "tool_calls": {
                "open": "<tool_call>",
                "close": "</tool_call>",
                "repeats": True,
                "content": "json",
            },
            "content": {"content": "text"},
        },
    }
    form = AnswerFormat.from_template(None, declared)
    one = f'<tool_call>{{"name": "get_weather", "arguments": {PARIS}}}</tool_call>'
    for text in (
        "Hello",
        "<think>hm</think>Hello",
        f"Look:{one}",
        f"<think>hm {{}}</think>{one}{one}",
        "<think>cut",
    ):
        theirs = chat_parsing.parse_response(text, declared, prefix="assistant\n")
        ours = split(text, form, TOOLS)
        assert ours.content == theirs.get("content", "")
        assert ours.reasoning == theirs.get("reasoning_content", "")
        found = [{"name": c.name, "arguments": json.loads(c.arguments)} for c in ours.calls]
        assert found == theirs.get("tool_calls", [])


@pytest.mark.parametrize(
    "declared",
    [
        "text",
        [1],
        {"fields": [1]},
        {"fields": {"tool_calls": "text", "thinking": ["text"]}},
        {"fields": {"tool_calls": {"content": "json", "open": "<call>", "close": " "}}},
        {"fields": {"tool_calls": {"content": "json", "open": "", "close": "</call>"}}},
        {"fields": {"tool_calls": {"content": "json", "open": "<call>", "close": None}}},
    ],
)
def test_declared_markers_that_are_none_are_passed_over(declared):
    """They come with checkpoints: an empty marker would be found at every place, for ever."""
    assert AnswerFormat.from_template(TEMPLATES["tagged"], declared) == AnswerFormat.from_template(
        TEMPLATES["tagged"]
    )
