"""Messages to the text that a chat model was taught on, by the model's own Jinja template.

Templates come with checkpoints and are not trusted: they run in Jinja's immutable sandbox and see
plain JSON values only. The names they may use are those that transformers offers. Knows nothing of
token ids.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from qeff.core.errors import RequestError

Message = Mapping[str, Any]
# What an expression of a template may raise, whatever the messages and variables are.
TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)


class ChatTemplate:
    """A compiled template and the special tokens that it may name."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise RequestError(f"the model's chat template cannot be read: {error}") from None

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The conversation as text, by default up to where the model has to answer."""
        if not messages:
            raise RequestError("the conversation is empty", "give at least one message")
        for message in messages:
            if not isinstance(message, Mapping) or "role" not in message:
                raise RequestError(f"a chat message needs a role and a content, got {message!r}")
        names = {
            **self._special_tokens,
            **_plain(variables or {}),
            "messages": _plain(messages),
            "tools": _plain(tools),
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(**names)
        except TEMPLATE_ERRORS as error:
            # The template is a program of the model's; what it raises is about these messages.
            raise RequestError(
                f"the model's chat template refuses the messages: {error}",
                "look at the roles and their order",
            ) from None


def choose_template(declared: Any, *, has_tools: bool = False) -> str | None:
    """The template of a tokenizer config: one text, or several with names; None without one."""
    if isinstance(declared, str):
        return declared
    named = _named_templates(declared)
    if has_tools and "tool_use" in named:
        return named["tool_use"]
    return named.get("default")


def _named_templates(declared: Any) -> dict[str, str]:
    """Templates by name, as far as a config holds any."""
    pairs: list[tuple[Any, Any]] = []
    if isinstance(declared, Mapping):
        pairs = list(declared.items())
    elif isinstance(declared, list):
        entries = [entry for entry in declared if isinstance(entry, Mapping)]
        pairs = [(entry.get("name"), entry.get("template")) for entry in entries]
    return {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}


def _plain(value: Any) -> Any:
    """A copy made of JSON types, so that a template cannot reach into live objects."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise RequestError(f"a chat message holds a {type(value).__name__}, which is no JSON value")


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which no chat model was taught.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


class _GenerationTag(jinja2.ext.Extension):
    """``{% generation %}`` marks the assistant's words for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment
