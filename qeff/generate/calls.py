"""Reads tool calls out of text that comes in pieces: a name, then arguments as JSON text.

A reader takes one character after another, so what it finds cannot depend on how the text was cut.
It gives the name as soon as it is sure and the arguments as they come, and says when the text is no
call after all. Knows nothing of the markers around a call, nor of models.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, Protocol

NAME_KEYS = ("name", "tool_name")
ARGUMENT_KEYS = ("arguments", "parameters")
CALL_KEYS = (*NAME_KEYS, *ARGUMENT_KEYS, "type", "function", "id")
MAX_HEAD = 200  # characters before the arguments of a call that begins with its name
# What stands before the arguments: the name, around it words that some models write each time.
HEAD = re.compile(r"\s*(?:function<｜tool▁sep｜>|functions\.)?(?P<name>[\w.-]+).*", re.DOTALL)


class Part(StrEnum):
    """What a piece of a call is."""

    NAME = "name"  # a call begins
    ARGUMENTS = "arguments"  # more of its arguments
    END = "end"  # the call is whole


Found = list[tuple[Part, str]]


class State(Enum):
    """Whether a reader wants more."""

    READING = 1
    DONE = 2
    FAILED = 3  # what came after the last piece is no call, nor a part of one


class CallReader(Protocol):
    """Takes the text of one or more calls character by character."""

    @property
    def state(self) -> State: ...

    def push(self, char: str) -> Found:
        """Add a character; what is certain with it."""


class _Value:
    """One JSON value as raw text, found by its quotes and brackets alone."""

    def __init__(self) -> None:
        self.text = ""
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    def push(self, char: str) -> bool:
        """Add a character; whether the value ends with it."""
        self.text += char
        if self._in_string:
            if self._is_escaped:
                self._is_escaped = False
            elif char == "\\":
                self._is_escaped = True
            elif char == '"':
                self._in_string = False
                return self._depth == 0
            return False
        if char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            return self._depth == 0
        return False

    @property
    def is_scalar(self) -> bool:
        """Whether it is a number or a word, which only a character after it ends."""
        return self.text[:1] not in ("", '"', "{", "[")


class ObjectReader:
    """``{"name": ..., "arguments": {...}}``, in any order, also inside ``{"function": {...}}``.

    Where ``known`` is given, only an object with one of these names and with arguments is a call.
    """

    def __init__(self, known: frozenset[str] | None = None) -> None:
        self.state = State.READING
        self._known = known
        self._expected = "{"
        self._levels = 0
        self._key: str | None = None
        self._value: _Value | None = None
        self._name: str | None = None
        self._is_named = False  # whether the name was given
        self._has_arguments = False
        self._waiting = ""  # arguments that came before the name

    def push(self, char: str) -> Found:
        assert self.state is State.READING, "text after the end of a call"
        if self._value is not None:
            if self._value.is_scalar and char in ",}] \t\r\n":
                found = self._end_value()
                return found + self.push(char) if self.state is State.READING else found
            return self._push_value(char)
        if char.isspace():
            return []
        if self._expected == "value":
            if char == "{" and self._key == "function":
                self._levels += 1
                self._expected = "key"
                return []
            self._value = _Value()
            return self._push_value(char)
        if self._expected == "key" and char == '"':
            self._key, self._value = None, _Value()
            return self._push_value(char)
        if self._expected == char and char in "{:":
            self._levels += char == "{"
            self._expected = "key" if char == "{" else "value"
            return []
        if self._expected in (",", "key") and char == "}":
            return self._close()
        if self._expected == "," and char == ",":
            self._expected = "key"
            return []
        return self._fail()

    @property
    def _is_argument(self) -> bool:
        return self._key in ARGUMENT_KEYS

    def _push_value(self, char: str) -> Found:
        assert self._value is not None
        is_raw = self._is_argument and (self._value.text or char)[0] in "{["
        has_ended = self._value.push(char)
        found = self._give(char) if is_raw else []
        if has_ended:
            found += self._end_value(is_given=is_raw)
        return found

    def _end_value(self, *, is_given: bool = False) -> Found:
        """A whole value: a key, a name, arguments, or something else that calls may hold."""
        assert self._value is not None
        text, self._value = self._value.text, None
        if is_given:
            self._expected = ","
            return []
        try:
            value = json.loads(text, strict=False)
        except (ValueError, RecursionError):
            return self._fail()
        if self._key is None:
            self._key, self._expected = value, ":"
            # Where it is not sure that a call comes, an object of other members is not held back.
            return self._fail() if self._known is not None and value not in CALL_KEYS else []
        self._expected = ","
        if self._key in NAME_KEYS or (self._key == "function" and isinstance(value, str)):
            return self._set_name(value)
        if self._is_argument:
            # Some models write the arguments as a string of JSON, or null for none.
            return self._give("{}" if value is None else value if isinstance(value, str) else text)
        return []

    def _set_name(self, name: Any) -> Found:
        if not isinstance(name, str) or (self._known is not None and name not in self._known):
            return self._fail()
        self._name = name
        if self._waiting or self._known is None:
            text, self._waiting = self._waiting, ""
            return self._give(text)
        return []

    def _give(self, text: str) -> Found:
        if self._name is None:
            self._waiting += text
            return []
        found: Found = [] if self._is_named else [(Part.NAME, self._name)]
        self._is_named = True
        self._has_arguments |= bool(text)
        return [*found, (Part.ARGUMENTS, text)] if text else found

    def _close(self) -> Found:
        self._levels -= 1
        self._expected = ","
        if self._levels:
            return []
        if not self._is_named:
            return self._fail()
        self.state = State.DONE
        return [*([] if self._has_arguments else [(Part.ARGUMENTS, "{}")]), (Part.END, "")]

    def _fail(self) -> Found:
        self.state = State.FAILED
        return []


class ListReader:
    """``[{...}, {...}]``: calls as objects of a list."""

    def __init__(self, known: frozenset[str] | None = None) -> None:
        self.state = State.READING
        self._known = known
        self._reader: ObjectReader | None = None
        self._expected = "["

    def push(self, char: str) -> Found:
        assert self.state is State.READING, "text after the end of a list"
        if self._reader is not None:
            found = self._reader.push(char)
            if self._reader.state is State.DONE:
                self._reader, self._expected = None, ","
            elif self._reader.state is State.FAILED:
                self.state = State.FAILED
            return found
        if char.isspace():
            return []
        if char == "{" and self._expected == "object":
            self._reader = ObjectReader(self._known)
            return self._reader.push(char)
        if char == self._expected and char in "[,":
            self._expected = "object"
            return []
        self.state = State.DONE if char == "]" and self._expected == "," else State.FAILED
        return []


class NamedReader:
    """``name ... {...}``: the name first, then the arguments."""

    def __init__(self) -> None:
        self.state = State.READING
        self._head = ""
        self._value: _Value | None = None

    def push(self, char: str) -> Found:
        found: Found = []
        if self._value is None:
            if char != "{":
                self._head += char
                if len(self._head) > MAX_HEAD:
                    self.state = State.FAILED
                return []
            match = HEAD.fullmatch(self._head)
            if match is None:
                self.state = State.FAILED
                return []
            self._value = _Value()
            found = [(Part.NAME, match["name"])]
        has_ended = self._value.push(char)
        found.append((Part.ARGUMENTS, char))
        if has_ended:
            self.state = State.DONE
            found.append((Part.END, ""))
        return found


@dataclass(frozen=True, slots=True)
class TagStyle:
    """How a call is written with a tag for each argument."""

    name: re.Pattern[str]
    argument: re.Pattern[str]  # groups: key and value
    end: str


FUNCTION_TAGS = TagStyle(
    re.compile(r"\s*<function=([^>\n]+)>"),
    re.compile(r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL),
    "</function>",
)
KEY_TAGS = TagStyle(
    re.compile(r"\s*([\w.-]+)\s*(?=<arg_key>|</tool_call>)"),
    re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL),
    "</tool_call>",
)


class TagReader:
    """A call with a tag for each argument, given as JSON by the types of the function's schema."""

    def __init__(self, style: TagStyle, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        self.state = State.READING
        self._style = style
        self._schemas = schemas
        self._name: str | None = None
        self._num_arguments = 0
        self._text = ""

    def push(self, char: str) -> Found:
        self._text += char
        if char != ">":  # everything that is looked for ends with it
            if self._name is None and len(self._text) > MAX_HEAD:
                self.state = State.FAILED
            return []
        found: Found = []
        if self._name is None:
            match = self._style.name.match(self._text)
            if match is None:
                return []
            self._name, self._text = match[1], self._text[match.end() :]
            found.append((Part.NAME, self._name))
        match = self._style.argument.match(self._text)
        if match is not None:
            self._text = self._text[match.end() :]
            member = f"{json.dumps(match[1])}: {self._encode(match[1], match[2])}"
            found.append((Part.ARGUMENTS, (", " if self._num_arguments else "{") + member))
            self._num_arguments += 1
        elif self._text.lstrip().startswith(self._style.end):
            found.append((Part.ARGUMENTS, "}" if self._num_arguments else "{}"))
            found.append((Part.END, ""))
            self.state = State.DONE
        return found

    def _encode(self, key: str, text: str) -> str:
        """An argument as JSON: by its declared type, and as a string where there is none."""
        assert self._name is not None
        declared = self._schemas.get(self._name, {}).get("properties", {}).get(key, {})
        kind = declared.get("type", "string") if isinstance(declared, Mapping) else "string"
        if kind != "string":
            try:
                return json.dumps(json.loads(text), ensure_ascii=False)
            except (ValueError, RecursionError):
                pass  # the model wrote no value of that type; what it wrote is still of use
        return json.dumps(text, ensure_ascii=False)


class AnyReader:
    """Chooses by the first character how calls are written.

    Args:
        schemas: The offered functions with the JSON schema of their parameters.
        style: How calls with a tag for each argument are written, where they may come.
        is_named: Whether a call may begin with its name.
        is_sure: Whether a marker said that a call comes; else only offered functions count.
    """

    def __init__(
        self,
        schemas: Mapping[str, Mapping[str, Any]],
        style: TagStyle | None = None,
        *,
        is_named: bool = False,
        is_sure: bool = True,
    ) -> None:
        self._schemas = schemas
        self._style = style
        self._is_named = is_named
        self._known = None if is_sure else frozenset(schemas)
        self._reader: CallReader | None = None

    @property
    def state(self) -> State:
        """That of the reader that was chosen."""
        return State.READING if self._reader is None else self._reader.state

    def push(self, char: str) -> Found:
        """Add a character; what is certain with it."""
        if self._reader is None:
            if char.isspace():
                return []
            self._reader = self._choose(char)
        return self._reader.push(char)

    def _choose(self, char: str) -> CallReader:
        if char == "[":
            return ListReader(self._known)
        if char != "{" and self._style is not None:
            return TagReader(self._style, self._schemas)
        if char != "{" and self._is_named:
            return NamedReader()
        return ObjectReader(self._known)  # which fails at once where no object begins
