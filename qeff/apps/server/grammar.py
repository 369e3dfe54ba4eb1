"""One grammar for a whole chat answer: what the model thought, then JSON, a pattern or calls.

A constraint alone would forbid a model that reasons to begin with its thoughts, and one that has
tools to call them; here both stand before or beside it. Writes Lark as llguidance reads it. Knows
nothing of requests or routes, nor how calls are written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from qeff.core.errors import RequestError
from qeff.generate import Constraint, Text
from qeff.generate.constraint import WHITESPACE, ConstraintKind

JSON_SETTINGS = {"whitespace_pattern": WHITESPACE, "lenient": False}
ANY = r"(?s:.*)"  # any text, up to what follows in the pattern


class Rules:
    """The rules of a grammar as they are made; each has a name of its own."""

    def __init__(self, text: Text) -> None:
        self.text = text
        self._lines: list[str] = []
        self._schemas: dict[str, str] = {}  # the rules of those that were met

    def add(self, body: str, attributes: str = "") -> str:
        """A rule; returns its name."""
        name = f"r{len(self._lines)}"
        self._lines.append(f"{name}{attributes}: {body}")
        return name

    def terminal(self, body: str) -> str:
        """A pattern made of patterns; returns its name."""
        name = f"T{len(self._lines)}"
        self._lines.append(f"{name}: {body}")
        return name

    def mark(self, mark: str) -> str:
        """A marker: the token of this name where it is a symbol, else its text."""
        token = self.text.tokenizer.token_to_id(mark)
        return f"<[{token}]>" if token in self.text.symbol_ids else literal(mark)

    def until(self, mark: str, unlike: str = "") -> str:
        """Any text, and the marker that ends it; all of it does not match ``unlike``."""
        token = self.text.tokenizer.token_to_id(mark)
        if token in self.text.symbol_ids:
            return f"{self.without(mark, unlike)} <[{token}]>"  # nobody could tell them apart
        return self._text(f"{ANY}{re.escape(mark)}", unlike, "[lazy]")

    def without(self, mark: str, unlike: str = "") -> str:
        """Any text in which the marker does not come, and that does not match ``unlike``."""
        holding = f"{ANY}{re.escape(mark)}{ANY}"
        return self._text(ANY, f"{unlike}|{holding}" if unlike else holding)

    def pattern(self, pattern: str) -> str:
        """What a regular expression matches."""
        return self.add(f"/{_slashed(pattern)}/")

    def _text(self, pattern: str, unlike: str, attributes: str = "") -> str:
        body = f"/{_slashed(pattern)}/"
        if unlike:
            body = self.terminal(f"{body} & ~/{_slashed(unlike)}/")
        return self.add(body, attributes)

    def json(self, schema: Mapping[str, Any]) -> str:
        """JSON that is valid under a schema."""
        own = schema.get("x-guidance", {})
        settings = {**JSON_SETTINGS, **(own if isinstance(own, Mapping) else {}), "lenient": False}
        body = f"%json {_to_json({**schema, 'x-guidance': settings})}"
        if body not in self._schemas:
            self._schemas[body] = self.add(body)
        return self._schemas[body]

    def source(self, start: str) -> str:
        """The whole grammar, from its first rule on."""
        return "\n".join([f"start: {start}", *self._lines, ""])


def literal(text: str) -> str:
    """A text as it stands."""
    return json.dumps(text, ensure_ascii=False)


def reasoned(rules: Rules, ending: str) -> str:
    """The thoughts before an answer, as far as the model's template knows them; may be empty.

    ``ending`` is the end of the prompt, where a template may have begun the thoughts.
    """
    marks = rules.text.answer_format.reasoning
    if marks is None:
        return ""
    opening, closing = marks
    thought = rules.until(closing)
    space = rules.add(r"/\s{0,4}/")
    if ending.rstrip().endswith(opening):
        return f"{thought} {space}"
    return f"({rules.mark(opening)} {thought} {space})?"


def constrained(rules: Rules, constraint: Constraint) -> str | None:
    """A constraint as part of a grammar; None for a grammar, which stands by itself."""
    kind, definition = constraint.kind, constraint.definition
    if kind is ConstraintKind.JSON_OBJECT:
        return rules.json({"type": "object"})
    if kind is ConstraintKind.JSON_SCHEMA:
        return rules.json(_read_schema(definition))
    if kind is ConstraintKind.REGEX:
        return rules.pattern(definition)
    if kind is ConstraintKind.CHOICE:
        return rules.add(" | ".join(map(literal, _read_choices(definition))))
    return None


def combine(
    text: Text,
    ending: str,
    *,
    constraint: Constraint | None = None,
    calls: str | None = None,
    rules: Rules | None = None,
) -> Constraint | None:
    """What an answer must follow: a constraint, calls, or either, after the thoughts."""
    rules = rules or Rules(text)
    if calls is None and (constraint is None or text.answer_format.reasoning is None):
        return constraint
    parts = [] if calls is None else [calls]
    if constraint is not None:
        part = constrained(rules, constraint)
        if part is None:
            return constraint
        parts.append(part)
    thoughts = reasoned(rules, ending)
    return Constraint.grammar(rules.source(f"{thoughts} ({' | '.join(parts)})".strip()))


def _slashed(pattern: str) -> str:
    """A pattern between slashes: those in it are escaped, and it stays on one line."""
    shown = re.sub(r"\\.|/", lambda m: r"\/" if m[0] == "/" else m[0], pattern, flags=re.DOTALL)
    return shown.replace("\n", r"\n").replace("\r", r"\r")


def _read_schema(definition: str) -> Mapping[str, Any]:
    try:
        schema = json.loads(definition)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the JSON schema cannot be used: {error}") from None
    if schema is True:
        return {}
    if not isinstance(schema, Mapping):
        raise RequestError(f"the JSON schema cannot be used: it is no object but {schema!r:.60}")
    return schema


def _read_choices(definition: str) -> Sequence[str]:
    choices = json.loads(definition)
    if not choices:
        raise RequestError("the choice cannot be used: the list of strings is empty")
    return [str(choice) for choice in choices]


def _to_json(schema: Mapping[str, Any]) -> str:
    try:
        return json.dumps(schema, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the JSON schema cannot be used: {error}") from None
