"""Splits a chat answer into what it says, what the model thought, and the tools that it calls.

The markers are those that the model's chat template holds. The answer may come in any pieces: no
part of a marker is ever given as content, arguments are given as they come, and the pieces joined
are what the whole answer gives. What turns out to be no call is content. Knows nothing of requests,
tokens or servers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from qeff.generate.calls import FUNCTION_TAGS, KEY_TAGS, AnyReader, Part, State, TagStyle

SPACE = " \t\r\n"
# Some models put a call between the fences of code instead of their markers.
FENCE = re.compile(r"```(?:json)?\s*(?=[{\[])")
FENCE_BEGUN = re.compile(r"`{1,2}|```(?:j|js|jso|json)?\s*")


class Field(StrEnum):
    """What a piece belongs to."""

    CONTENT = "content"
    REASONING = "reasoning"
    CALL = "call"  # a call begins; the text is the function's name
    ARGUMENTS = "arguments"  # more of the JSON text of that call's arguments
    CALL_END = "call_end"  # its arguments are whole


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text of one field."""

    field: Field
    text: str = ""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the model wants called; the arguments are JSON text where it is whole."""

    name: str
    arguments: str = ""
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """All pieces of an answer, joined."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """How a model writes calls."""

    opens: tuple[str, ...] = ()  # a call or a list of calls follows
    skips: tuple[str, ...] = ()  # ends and wrappers, which say nothing
    is_bare: bool = False  # an answer that begins as JSON, between fences or not, may be a call
    is_named: bool = False  # a call may begin with its name instead of a bracket
    tags: TagStyle | None = None  # arguments may come in tags of their own


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The markers of a model's answers."""

    reasoning: tuple[str, str] | None = None  # begin and end
    calls: CallSyntax = CallSyntax()

    @property
    def markers(self) -> frozenset[str]:
        """Texts that have to reach the splitter, even where they are special tokens."""
        return frozenset((*(self.reasoning or ()), *self.calls.opens, *self.calls.skips))

    @classmethod
    def from_template(cls, template: str | None, declared: object = None) -> AnswerFormat:
        """The format that a chat template was written for.

        Args:
            template: The chat template's source.
            declared: ``response_template`` of the tokenizer's config, where there is one.
        """
        source = (template or "").replace('\\"', '"')
        reasoning = next((pair for pair in REASONING if pair[1] in source), None)
        calls = next((syntax for sign, syntax in CALLS if re.search(sign, source)), GENERIC)
        found = cls(reasoning, calls)
        return found if declared is None else _with_declared(found, declared)


REASONING = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("◁think▷", "◁/think▷"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
)
_TAGGED = CallSyntax(("<tool_call>",), ("</tool_call>",))
# What is looked for in the template, and the syntax it stands for; the first that is found counts.
CALLS = (
    (
        "<｜tool▁call▁begin｜>",
        CallSyntax(
            ("<｜tool▁call▁begin｜>",),
            (
                "<｜tool▁calls▁begin｜>",
                "```<｜tool▁call▁end｜>",
                "<｜tool▁call▁end｜>",
                "<｜tool▁calls▁end｜>",
            ),
            is_named=True,
        ),
    ),
    (
        r"<\|tool_call_begin\|>",
        CallSyntax(
            ("<|tool_call_begin|>",),
            (
                "<|tool_calls_section_begin|>",
                "<|tool_call_end|>",
                "<|tool_calls_section_end|>",
            ),
            is_named=True,
        ),
    ),
    ("<arg_key>", replace(_TAGGED, tags=KEY_TAGS)),
    (
        "<seed:tool_call>",
        CallSyntax(("<seed:tool_call>",), ("</seed:tool_call>",), tags=FUNCTION_TAGS),
    ),
    (r"<tool_call>[\s\S]*<function=", replace(_TAGGED, tags=FUNCTION_TAGS)),
    ("<tool_call>", replace(_TAGGED, is_bare=True)),
    ("<function=", CallSyntax(("<function=",), ("</function>",), is_named=True)),
    ("<TOOLCALL>", CallSyntax(("<TOOLCALL>",), ("</TOOLCALL>",))),
    (r"<\|tool_call\|>", CallSyntax(("<|tool_call|>",), ("<|/tool_call|>",))),
    (r"\[TOOL_CALLS\]", CallSyntax(("[TOOL_CALLS]",), is_named=True)),
    (r"<\|START_ACTION\|>", CallSyntax(("<|START_ACTION|>",), ("<|END_ACTION|>",))),
    ("<tool_calls>", CallSyntax(("<tool_calls>",), ("</tool_calls>",))),
    (r'<\|python_tag\|>|"parameters": ', CallSyntax(("<|python_tag|>",), is_bare=True)),
)
GENERIC = replace(_TAGGED, is_bare=True)
_FIELDS = {Part.NAME: Field.CALL, Part.ARGUMENTS: Field.ARGUMENTS, Part.END: Field.CALL_END}


class FieldSplitter:
    """Takes an answer piece by piece.

    Args:
        form: The markers to look for.
        tools: The functions that were offered, with the JSON schema of their parameters; calls are
            looked for only where there are some.
        prompt: What the answer goes on from; a template may begin the reasoning itself.
    """

    def __init__(
        self,
        form: AnswerFormat,
        tools: Mapping[str, Mapping[str, Any]] | None = None,
        prompt: str = "",
    ) -> None:
        self._reasoning = form.reasoning
        self._calls = form.calls if tools else CallSyntax()
        self._tools = tools or {}
        self._markers = (*self._calls.opens, *self._calls.skips)
        self._held = ""  # text that may yet be part of a marker
        self._is_blank = True  # nothing was said since the beginning or the last marker
        self._gap = ""  # characters that are dropped after a marker
        self._is_reasoning = self._is_fresh = bool(
            form.reasoning and prompt.rstrip().endswith(form.reasoning[0])
        )
        self._reader: AnyReader | None = None
        self._before: str | None = None  # what a call began with, until it is sure to be one
        self._unread = ""  # what the reader took since its last piece
        self._is_fenced = False  # whether the call stands between fences

    def push(self, text: str) -> list[Piece]:
        """Add text; what is certain with it."""
        self._held += text
        found: list[Piece] = []
        while self._advance(found):
            pass
        return _merge(found)

    def flush(self) -> list[Piece]:
        """What was held back, when no more text comes."""
        found: list[Piece] = []
        if self._reader is not None and self._before is not None:
            self._say(found, self._before + self._unread)
        field = Field.REASONING if self._is_reasoning else Field.CONTENT
        if not self._is_blank or self._held.strip(self._gap):
            found.append(Piece(field, self._held))
        self._reader, self._held = None, ""
        return _merge(found)

    def _advance(self, found: list[Piece]) -> bool:
        """One move; whether another may be possible."""
        if self._is_reasoning:
            return self._think(found)
        if self._reader is not None:
            return self._read(self._reader, found)
        if not self._is_blank or not (self._reasoning or self._markers):
            return self._talk(found)
        start = self._held.lstrip(SPACE + self._gap)
        opening = self._reasoning[0] if self._reasoning else ""
        if start == "" or (opening and opening != start and opening.startswith(start)):
            return False
        if opening and start.startswith(opening):
            self._held = start[len(opening) :]
            self._is_reasoning = self._is_fresh = True
            return True
        if self._gap:
            self._held = start
        if self._calls.is_bare and FENCE_BEGUN.fullmatch(start):
            return False
        fence = FENCE.match(start)
        bare = start[fence.end() :] if fence else start
        if self._calls.is_bare and bare[0] in "{[":
            self._begin(self._held[: len(self._held) - len(bare)], bare, is_sure=False)
            self._is_fenced = fence is not None
            return True
        return self._talk(found)

    def _think(self, found: list[Piece]) -> bool:
        assert self._reasoning is not None
        opening, closing = self._reasoning
        if self._is_fresh:
            self._held = self._held.lstrip()
            if self._held.startswith(opening):  # the template and the model both began it
                self._held = self._held[len(opening) :]
                return True
            if opening.startswith(self._held):
                return False
            self._is_fresh = False
        thought, mark, rest = self._held.partition(closing)
        if mark:
            found.append(Piece(Field.REASONING, thought.rstrip()))
            self._held, self._is_reasoning = rest, False
            self._is_blank, self._gap = True, SPACE
            return True
        certain = _certain(self._held, (closing,))
        found.append(Piece(Field.REASONING, self._held[:certain]))
        self._held = self._held[certain:]
        return False

    def _talk(self, found: list[Piece]) -> bool:
        """Content, up to a marker of calls."""
        held = self._held
        places = [(held.find(mark), -len(mark), mark) for mark in self._markers if mark in held]
        if not places:
            certain = _certain(held, self._markers)
            self._say(found, held[:certain])
            self._held = held[certain:]
            return False
        place, minus_len, mark = min(places)
        said = held[:place].rstrip()
        self._say(found, said)
        if mark in self._calls.opens:
            self._begin(held[len(said) : place - minus_len], held[place - minus_len :])
        else:
            self._held = held[place - minus_len :]
            self._is_blank, self._gap = True, SPACE
        return True

    def _say(self, found: list[Piece], text: str) -> None:
        if text:
            found.append(Piece(Field.CONTENT, text))
            self._is_blank, self._gap = False, ""

    def _begin(self, before: str, rest: str, *, is_sure: bool = True) -> None:
        """A call may begin; ``before`` is content after all if it does not."""
        self._before, self._unread, self._held = before, "", rest
        self._is_fenced = False
        self._reader = AnyReader(
            self._tools, self._calls.tags, is_named=self._calls.is_named, is_sure=is_sure
        )

    def _read(self, reader: AnyReader, found: list[Piece]) -> bool:
        """Give the reader of a call what is held, up to its end."""
        for index, char in enumerate(self._held):
            self._unread += char
            for part, text in reader.push(char):
                found.append(Piece(_FIELDS[part], text))
                self._before, self._unread = None, ""
            if reader.state is not State.READING:
                self._held = self._held[index + 1 :]
                self._end_call(found, is_failed=reader.state is State.FAILED)
                return True
        self._held = ""
        return False

    def _end_call(self, found: list[Piece], *, is_failed: bool) -> None:
        self._reader = None
        ends = ";" * self._calls.is_bare + "`" * self._is_fenced
        self._is_blank, self._gap = True, SPACE + ends
        if not is_failed:
            return
        if self._before is not None:
            # Its beginning is content for sure; what came after that is looked at again.
            num = 0 if self._before.strip() else 1
            self._say(found, self._before + self._unread[:num])
            self._unread = self._unread[num:]
        self._held = self._unread + self._held


def split(
    text: str,
    form: AnswerFormat,
    tools: Mapping[str, Mapping[str, Any]] | None = None,
    prompt: str = "",
) -> Answer:
    """The fields of a whole answer."""
    splitter = FieldSplitter(form, tools, prompt)
    return gather([*splitter.push(text), *splitter.flush()])


def gather(pieces: Iterable[Piece]) -> Answer:
    """The answer that pieces make."""
    texts = {Field.CONTENT: "", Field.REASONING: ""}
    calls: list[ToolCall] = []
    for piece in pieces:
        if piece.field in texts:
            texts[piece.field] += piece.text
        elif piece.field is Field.CALL:
            calls.append(ToolCall(piece.text))
        elif piece.field is Field.ARGUMENTS:
            calls[-1] = replace(calls[-1], arguments=calls[-1].arguments + piece.text)
        else:
            calls[-1] = replace(calls[-1], is_whole=True)
    return Answer(texts[Field.CONTENT], texts[Field.REASONING], tuple(calls))


def _merge(pieces: Iterable[Piece]) -> list[Piece]:
    """Neighbours of one field joined, and empty texts left out."""
    merged: list[Piece] = []
    for piece in pieces:
        is_text = piece.field not in (Field.CALL, Field.CALL_END)
        if is_text and merged and merged[-1].field is piece.field:
            merged[-1] = Piece(piece.field, merged[-1].text + piece.text)
        elif piece.text or not is_text:
            merged.append(piece)
    return merged


def _certain(text: str, marks: Sequence[str]) -> int:
    """Up to where a text is neither the beginning of a mark nor white space before one."""
    if not marks:
        return len(text)
    overlap = max(
        (n for mark in marks for n in range(1, len(mark)) if text.endswith(mark[:n])), default=0
    )
    return len(text[: len(text) - overlap].rstrip())


def _with_declared(form: AnswerFormat, declared: object) -> AnswerFormat:
    """The format with those markers that the tokenizer's config names as plain texts."""
    fields = _part(declared, "fields")
    thought = _part(fields, "reasoning_content") or _part(fields, "thinking")
    if (ends := _ends(thought)) is not None:
        form = replace(form, reasoning=ends)
    call = _part(fields, "tool_calls")
    if call.get("content") == "json" and (ends := _ends(call)) is not None:
        form = replace(form, calls=CallSyntax(ends[:1], ends[1:]))
    return form


def _part(declared: object, name: str) -> Mapping[str, Any]:
    """A part of what a config declares; empty where there is none, or something else."""
    part = declared.get(name) if isinstance(declared, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def _ends(declared: Mapping[str, Any]) -> tuple[str, str] | None:
    """The markers that a field begins and ends with, where both are texts."""
    opening, closing = declared.get("open"), declared.get("close")
    if not (isinstance(opening, str) and isinstance(closing, str)):
        return None
    ends = opening.strip(), closing.strip()
    return ends if all(ends) else None
