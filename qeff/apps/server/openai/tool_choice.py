"""OpenAI's ``tool_choice`` as the use that an answer may make of its tools."""

from __future__ import annotations

from collections.abc import Iterable

from qeff.apps.server.errors import ApiError, bad_request
from qeff.apps.server.openai.chat_shapes import NamedChoice, ToolChoice
from qeff.apps.server.question import ToolUse, Use


def tool_use(
    choice: ToolChoice | None, known: Iterable[str], *, is_parallel: bool | None
) -> ToolUse:
    """How the tools of these names are to be used; refuses names that are not among them."""
    names = list(known)
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise bad_request(f"The tool {min(twice)!r} is offered twice.", "tools")
    is_single = is_parallel is False
    if choice is None or isinstance(choice, str):
        use = Use(choice or ("auto" if names else "none"))
        if use is Use.REQUIRED and not names:
            raise bad_request("A tool has to be called, but none is offered.", "tool_choice")
        return ToolUse(use, None, is_single)
    if isinstance(choice, NamedChoice):
        wanted, use, is_single = [choice.function.name], Use.REQUIRED, True
    else:
        wanted = [one.function.name for one in choice.allowed_tools.tools]
        use = Use(choice.allowed_tools.mode)
    return chosen(wanted, use, names, is_single=is_single)


def chosen(wanted: list[str], use: Use, known: list[str], *, is_single: bool) -> ToolUse:
    """The use of some of the tools."""
    for name in wanted:
        if name not in known:
            raise unknown_tool(name, known)
    if not wanted:
        raise bad_request("The list of allowed tools is empty.", "tool_choice")
    return ToolUse(use, frozenset(wanted), is_single)


def unknown_tool(name: str, known: list[str]) -> ApiError:
    """The refusal of a tool that is not offered."""
    offered = f"offered are {', '.join(known)}" if known else "none is offered"
    return bad_request(f"There is no tool {name!r:.100}; {offered}.", "tool_choice")
