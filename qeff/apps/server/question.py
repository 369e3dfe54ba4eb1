"""A turn of a conversation as every chat protocol asks it, and the request that is made of it.

The protocols differ in their shapes alone: messages, tools and the choice among them come here in
the form that chat templates take. Knows nothing of HTTP and of any protocol's fields.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from qeff.apps.server.call_grammar import calls_rule, words_or_calls_rule
from qeff.apps.server.config import ServerConfig
from qeff.apps.server.errors import from_qeff
from qeff.apps.server.fit import Fit
from qeff.apps.server.grammar import Rules, combine
from qeff.apps.server.large import LARGE, beside
from qeff.apps.server.served import LONG_TEXT, NUM_LOOKED_AT, Asked, Served
from qeff.apps.server.tool_words import in_words
from qeff.core.errors import QeffError
from qeff.generate import Constraint, SamplingParams


class Use(StrEnum):
    """Whether an answer may call tools."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How the tools of a question are to be used.

    Args:
        use: Whether they may or must be called.
        names: The tools that may be called; None allows all.
        is_single: Whether an answer has one call at most.
    """

    use: Use = Use.AUTO
    names: frozenset[str] | None = None
    is_single: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A conversation that the model has to go on with.

    Args:
        messages: In the form that chat templates take.
        params: How tokens are chosen and when to stop.
        tools: Functions that may be called, in the form that chat templates take.
        tool_use: How they are to be used.
        strict: The names of those whose arguments must be valid whenever they are called.
        fit: What the answer must fit; calls of tools are free of it.
        template_args: More variables for the template.
        add_generation_prompt: Whether the template begins the answer.
        beginning: Text that the answer goes on from.
        priority: Lower numbers run first.
        cache_salt: Cached prefixes are shared among equal salts alone.
        size: Bytes of the request.
    """

    messages: Sequence[Mapping[str, Any]]
    params: SamplingParams
    tools: Sequence[Mapping[str, Any]] = ()
    tool_use: ToolUse = field(default_factory=ToolUse)
    strict: frozenset[str] = frozenset()
    fit: Fit = field(default_factory=Fit)
    template_args: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True
    beginning: str = ""
    priority: int = 0
    cache_salt: str = ""
    size: int = 0


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The schemas of the parameters of tools, by name."""
    return {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}


async def prompt_of(served: Served, question: Question) -> list[int]:
    """The token ids of a conversation, with the tools that may be called."""

    def render() -> list[int]:
        tools = [] if question.tool_use.use is Use.NONE else list(question.tools)
        messages = question.messages
        if not served.text.knows_tools:
            messages, tools = in_words(messages, tools), []
        return served.chat_ids(
            messages,
            tools=tools or None,
            template_args=question.template_args,
            add_generation_prompt=question.add_generation_prompt,
            beginning=question.beginning,
        )

    if LONG_TEXT <= question.size < LARGE:
        return await asyncio.to_thread(render)
    return await beside(question.size, render)


async def asked_of(served: Served, question: Question, config: ServerConfig) -> Asked:
    """The request to the engine; refuses what does not fit the context."""
    ids = await prompt_of(served, question)
    served.check_prompt(ids, "messages")
    served.check_params(question.params)
    is_of_tools = question.tool_use.use is Use.REQUIRED or question.fit.constraint is None
    source = "tools" if is_of_tools else question.fit.field
    try:
        constraint = await beside(question.size, _constraint_of, served, question, ids)
    except QeffError as error:
        raise from_qeff(error, source) from None
    return Asked(
        prompt=tuple(ids),
        params=served.fitted(question.params, len(ids), config.max_tokens),
        constraint=constraint,
        constraint_field=source,
        splits=True,
        schemas=_offered(question),
        priority=question.priority,
        cache_salt=question.cache_salt,
        deadline_s=config.request_timeout_s,
    )


def _offered(question: Question) -> dict[str, Mapping[str, Any]]:
    """The tools that the answer may call."""
    names = question.tool_use.names
    if question.tool_use.use is Use.NONE:
        return {}
    schemas = schemas_of(question.tools)
    return {name: schemas[name] for name in schemas if names is None or name in names}


def _constraint_of(served: Served, question: Question, ids: Sequence[int]) -> Constraint | None:
    offered = _offered(question)
    must_call = question.tool_use.use is Use.REQUIRED
    constraint = None if must_call else question.fit.constraint
    has_strict = not question.strict.isdisjoint(offered)
    if not must_call and constraint is None and not has_strict:
        return None
    ending = served.decode(ids[-NUM_LOOKED_AT:], skip_special_tokens=False)
    if not offered:
        return combine(served.text, ending, constraint=constraint)
    rules = Rules(served.text)
    syntax = served.text.answer_format.calls
    is_single = question.tool_use.is_single
    if must_call or constraint is not None:
        calls = calls_rule(rules, syntax, offered, is_single=is_single)
    else:
        # Arguments in tags are written by their names, so the others' schemas are needed too.
        kept = offered.keys() if syntax.tags is not None else question.strict
        schemas = {name: offered[name] if name in kept else {} for name in offered}
        calls = words_or_calls_rule(rules, syntax, schemas, is_single=is_single)
    return combine(served.text, ending, constraint=constraint, calls=calls, rules=rules)
