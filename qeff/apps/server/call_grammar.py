"""Grammars of tool calls in the way that a model's chat template writes them.

For answers that have to call a tool, and for words after which one may be called: the name is one
of those offered, and the arguments are valid under its schema. The forms are those that
``qeff.generate.calls`` reads. Knows nothing of routes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from qeff.apps.server.grammar import Rules, literal
from qeff.generate.calls import FUNCTION_TAGS, KEY_TAGS
from qeff.generate.constraint import WHITESPACE
from qeff.generate.fields import CallSyntax

Schemas = Mapping[str, Mapping[str, Any]]
ANY_ARGUMENTS = {"type": "object"}
# What stands before a name, between it and its arguments, and after those.
NAMED = {
    "<｜tool▁call▁begin｜>": (("function", "<｜tool▁sep｜>"), ("\n```json\n",), ("\n```",)),
    "<|tool_call_begin|>": (("functions.",), (":0", "<|tool_call_argument_begin|>"), ()),
    "<function=": ((), (">",), ()),
}
SECTIONS = {
    "<｜tool▁call▁begin｜>": ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    "<|tool_call_begin|>": ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
}
ENDS = {"<｜tool▁call▁begin｜>": "<｜tool▁call▁end｜>", "<|tool_call_begin|>": "<|tool_call_end|>"}
LISTS = ("<TOOLCALL>", "<|tool_call|>", "[TOOL_CALLS]", "<|START_ACTION|>", "<tool_calls>")
BARE = ("<|python_tag|>",)
# How an answer begins that is a call without a marker.
BEGUN = r'\s*(```(json)?\s*)?\{\s*"name"(?s:.*)'


def calls_rule(
    rules: Rules, syntax: CallSyntax, schemas: Schemas, *, is_single: bool, lead: str = ""
) -> str:
    """The rule of one call, or of one and more, to the tools of these schemas.

    ``lead`` is a rule in the place of the first marker, which it ends with.
    """
    opening = syntax.opens[0]
    if opening in BARE:
        return rules.add(" | ".join(_object(rules, schemas, "parameters")))
    first = lead or rules.mark(first_marker(syntax))
    if opening in LISTS:
        each = rules.add(" | ".join(_object(rules, schemas, "arguments")))
        more = "" if is_single else f' (", " {each})*'
        ending = rules.mark(syntax.skips[0]) if syntax.skips else ""
        return rules.add(f'{first} "[" {each}{more} "]" {ending}')
    begin = rules.mark(opening)
    call = rules.add(" | ".join(_opened_call(rules, syntax, schemas)))
    more = "" if is_single else f' ("\\n"? {begin} {call})*'
    if opening in SECTIONS:
        return rules.add(f"{first} {begin} {call}{more} {rules.mark(SECTIONS[opening][1])}")
    # A line may end before the answer does: models that write one more would have to call again.
    return rules.add(f'{first} {call}{more} "\\n"?')


def words_or_calls_rule(
    rules: Rules, syntax: CallSyntax, schemas: Schemas, *, is_single: bool
) -> str:
    """The rule of words, of calls, or of words and then calls: what begins as a call is one."""
    is_bare = syntax.is_bare or syntax.opens[0] in BARE
    unlike = BEGUN if is_bare else ""
    mark = first_marker(syntax)
    options = [rules.without(mark, unlike)]
    if syntax.opens[0] not in BARE:
        lead = rules.until(mark, unlike)
        options.append(calls_rule(rules, syntax, schemas, is_single=is_single, lead=lead))
        options += _bare(rules, schemas) if is_bare else ()
    else:
        options.append(calls_rule(rules, syntax, schemas, is_single=is_single))
    return rules.add(" | ".join(options))


def first_marker(syntax: CallSyntax) -> str:
    """What calls begin with."""
    opening = syntax.opens[0]
    return SECTIONS[opening][0] if opening in SECTIONS else opening


def _opened_call(rules: Rules, syntax: CallSyntax, schemas: Schemas) -> list[str]:
    """Each tool's call with all that follows its first marker."""
    opening = syntax.opens[0]
    if opening in NAMED:
        closing = rules.mark(ENDS.get(opening, syntax.skips[0]))
        before, between, after = (_texts(rules, part) for part in NAMED[opening])
        return [
            f"{before} {literal(name)} {between} {_arguments(rules, schema)} {after} {closing}"
            for name, schema in schemas.items()
        ]
    closing = rules.mark(syntax.skips[0])
    if syntax.tags is FUNCTION_TAGS:
        bodies = [_function_tags(rules, name, schema) for name, schema in schemas.items()]
    elif syntax.tags is KEY_TAGS:
        bodies = [_key_tags(rules, name, schema) for name, schema in schemas.items()]
        return [f"{body} {closing}" for body in bodies]
    else:
        bodies = _object(rules, schemas, "arguments")
    return [f'"\\n" {body} "\\n" {closing}' for body in bodies]


def _object(rules: Rules, schemas: Schemas, key: str) -> list[str]:
    """Each tool's call as a JSON object with its name and its arguments."""
    return [
        " ".join((literal(_head(name, key)), _arguments(rules, schema), '"}"'))
        for name, schema in schemas.items()
    ]


def _bare(rules: Rules, schemas: Schemas) -> list[str]:
    """A call as a JSON object without markers, alone or between fences of code."""
    space = f"({WHITESPACE})?"
    options = []
    for name, schema in schemas.items():
        texts = ("{", '"name"', ":", json.dumps(name, ensure_ascii=False), ",", '"arguments"', ":")
        # One pattern, longer than what words may be: the longest of those that match counts.
        head = space.join((*map(re.escape, texts), ""))
        rest = f"{_arguments(rules, schema)} {rules.add(f'/{space}/')} {literal('}')}"
        options.append(f"{rules.pattern(head)} {rest}")
        options.append(f'{rules.pattern("```(json)?" + space + head)} {rest} "\\n```"')
    return options


def _head(name: str, key: str) -> str:
    return json.dumps({"name": name, key: 0}, ensure_ascii=False)[: -len("0}")]


def _arguments(rules: Rules, schema: Mapping[str, Any]) -> str:
    # A schema that says nothing of its type is that of the arguments all the same: an object.
    return rules.json({**ANY_ARGUMENTS, **schema})


def _function_tags(rules: Rules, name: str, schema: Mapping[str, Any]) -> str:
    parts = [literal(f"<function={name}>\n")]
    for key, declared, is_needed in _members(schema):
        value = _value(rules, declared, "\n</parameter>")
        begin = literal(f"<parameter={key}>\n")
        part = rules.add(f'{begin} {value} "\\n"')
        parts.append(part if is_needed else f"{part}?")
    return " ".join([*parts, literal("</function>")])


def _key_tags(rules: Rules, name: str, schema: Mapping[str, Any]) -> str:
    parts = [literal(f"{name}\n")]
    for key, declared, is_needed in _members(schema):
        value = _value(rules, declared, "</arg_value>")
        begin = literal(f"<arg_key>{key}</arg_key>\n<arg_value>")
        part = rules.add(f'{begin} {value} "\\n"')
        parts.append(part if is_needed else f"{part}?")
    return " ".join(parts)


def _members(schema: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any], bool]]:
    """The arguments of a tool: name, schema with what it may refer to, whether it must come."""
    properties = schema.get("properties")
    required = schema.get("required")
    needed = required if isinstance(required, list) else []
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    if not isinstance(properties, Mapping):
        return []
    return [
        (key, {**shared, **declared} if isinstance(declared, Mapping) else shared, key in needed)
        for key, declared in properties.items()
    ]


def _value(rules: Rules, declared: Mapping[str, Any], ending: str) -> str:
    """A value between tags, with the tag that ends it: strings as they are, all else as JSON."""
    options = declared.get("enum")
    if isinstance(options, list) and options and all(isinstance(one, str) for one in options):
        return f"({' | '.join(map(literal, options))}) {literal(ending)}"
    if declared.get("type", "string") == "string" and "$ref" not in declared:
        return rules.until(ending)
    return f"{rules.json(declared)} {literal(ending)}"


def _texts(rules: Rules, parts: tuple[str, ...]) -> str:
    return " ".join(rules.mark(part) for part in parts)
