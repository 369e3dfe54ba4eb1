"""Output that has to fit a JSON schema, a regular expression, a grammar or one of some strings.

A definition is compiled once for a tokenizer; every request then has its own matcher, which says
before each token which ones may come and is told which one came. What may come depends on the
tokens that came and on nothing else. The grammars are llguidance's, loaded when first used. Knows
nothing of logits, sampling or schedules.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import ModuleType
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from qeff.core.errors import OptionTypeError, RequestError, ResourceError, unknown_name

MAX_DEFINITION = 1 << 20  # characters; larger ones take seconds to compile
MAX_CACHED = 64  # compiled definitions
# One space, or a line break with its indentation: a model can be neat, but not idle for ever.
WHITESPACE = r" |\r?\n[ \t]{0,60}"


class ConstraintKind(StrEnum):
    """How the definition of a constraint is written."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"  # any object; the definition is empty
    REGEX = "regex"  # the whole text matches
    GRAMMAR = "grammar"  # Lark as llguidance reads it, or GBNF
    CHOICE = "choice"  # a JSON list of strings


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the output has to fit; whether the definition makes sense is seen by the compiler."""

    kind: ConstraintKind
    definition: str = ""

    def __post_init__(self) -> None:
        if self.kind not in tuple(ConstraintKind):
            raise unknown_name("kind of constraint", str(self.kind), map(str, ConstraintKind))
        object.__setattr__(self, "kind", ConstraintKind(self.kind))
        if not isinstance(self.definition, str):
            raise OptionTypeError(
                f"the definition of a {self.kind} constraint must be text, not "
                f"{type(self.definition).__name__}"
            )

    @classmethod
    def json_schema(cls, schema: str | bool | Mapping[str, Any]) -> Constraint:
        """JSON that is valid under a schema, which is given as JSON text or as its values."""
        text = schema if isinstance(schema, str) else _to_json(schema)
        return cls(ConstraintKind.JSON_SCHEMA, text)

    @classmethod
    def json_object(cls) -> Constraint:
        """Any JSON object."""
        return cls(ConstraintKind.JSON_OBJECT)

    @classmethod
    def regex(cls, pattern: str) -> Constraint:
        """Text that a regular expression matches from its beginning to its end."""
        return cls(ConstraintKind.REGEX, pattern)

    @classmethod
    def grammar(cls, grammar: str) -> Constraint:
        """Text that a context-free grammar makes, written in Lark or in GBNF."""
        return cls(ConstraintKind.GRAMMAR, grammar)

    @classmethod
    def choice(cls, choices: Sequence[str]) -> Constraint:
        """One of some strings."""
        if isinstance(choices, str) or not all(isinstance(one, str) for one in choices):
            raise OptionTypeError(f"a choice is a list of strings, not {choices!r:.100}")
        return cls(ConstraintKind.CHOICE, json.dumps(list(choices)))


def is_symbol(name: str, is_special: bool) -> bool:
    """Whether an added token is a symbol of grammars instead of the text that it is called by."""
    return is_special or (name.startswith("<") and name.endswith(">"))


class Matcher:
    """How far one output has come in its constraint.

    ``mask`` and ``accept`` take turns. For looking ahead there is ``allows``, or a fork.
    """

    def __init__(
        self, matcher: Any, vocab_size: int, eos_ids: frozenset[int], tokenizer: Tokenizer
    ) -> None:
        self._matcher = matcher
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_ids = eos_ids
        self._has_ended = False

    @property
    def is_satisfied(self) -> bool:
        """Whether the output may end here."""
        return self._has_ended or bool(self._matcher.is_accepting())

    @property
    def is_finished(self) -> bool:
        """Whether nothing but the end may follow."""
        return self._has_ended or bool(self._matcher.is_stopped())

    def mask(self) -> np.ndarray:
        """Which tokens may come: int32 [⌈vocab / 32⌉], token t at bit t mod 32 of word t // 32.

        The tokens that end a text are among them exactly when the constraint is satisfied. Where
        only one text can follow, the one token is that which the tokenizer would write it with.
        """
        words = np.zeros((self._vocab_size + 31) // 32, np.uint32)
        if not self.is_finished:
            found = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)
            words[:] = found[: len(words)]
        self._check()
        self._spell(words)
        # The library goes by what a token is called, the engine by its id: an end is an end.
        for token in self._eos_ids:
            bit = np.uint32(1 << (token % 32))
            words[token // 32] &= ~bit
            if self.is_satisfied:
                words[token // 32] |= bit
        if self._vocab_size % 32:
            words[-1] &= np.uint32((1 << (self._vocab_size % 32)) - 1)
        if not words.any():
            raise RequestError("the model has no token that goes on as its constraint asks")
        return words.view(np.int32)

    def accept(self, token: int) -> None:
        """Go on with a token that the mask allows."""
        if token in self._eos_ids:
            assert self.is_satisfied, "the text ended before its constraint was satisfied"
            self._has_ended = True
            return
        assert not self._has_ended, f"token {token} after the end"
        if not self._matcher.consume_token(token):
            error = self._matcher.get_error()
            assert "satisfy the grammar" not in error, f"token {token} is not allowed: {error}"
            self._check()

    def allows(self, tokens: Sequence[int]) -> int:
        """How many of these tokens the masks would allow one after another; changes nothing."""
        ahead = self.fork()
        for index, token in enumerate(tokens):
            if not 0 <= token < self._vocab_size or not ahead.mask()[token // 32] >> token % 32 & 1:
                return index
            ahead.accept(token)
        return len(tokens)

    def forced(self) -> list[int]:
        """The tokens that must come next, as far as they are certain: a draft that is right."""
        if self.is_finished:
            return []
        found = [int(token) for token in self._matcher.compute_ff_tokens()]
        return found[: self._matcher.validate_tokens(found)]

    def fork(self) -> Matcher:
        """A matcher of the same state that goes on by itself."""
        copy = Matcher(self._matcher.deep_copy(), self._vocab_size, self._eos_ids, self._tokenizer)
        copy._has_ended = self._has_ended
        return copy

    def _spell(self, words: np.ndarray) -> None:
        """Text that must come and that is also the name of a symbol is written piece by piece.

        The library offers the symbol, as the tokenizer would write it, and then does not take it.
        """
        (places,) = np.nonzero(words)
        if len(places) != 1 or (word := int(words[places[0]])) & (word - 1):
            return
        token = 32 * int(places[0]) + word.bit_length() - 1
        if self._matcher.validate_tokens([token]):
            return
        text = bytes(self._matcher.compute_ff_bytes()).decode("utf-8", errors="ignore")
        (piece, *_) = self._tokenizer.encode(text[:1], add_special_tokens=False).ids or [token]
        words[places[0]] = 0
        words[piece // 32] |= np.uint32(1 << (piece % 32))

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RequestError(
                f"the constraint cannot be followed: {_sentence(self._matcher.get_error())}",
                "give a simpler definition",
            )


class ConstraintCompiler:
    """Makes matchers for one tokenizer; may be used by many threads.

    ``vocab_size`` is the number of logits, which may be more than the tokenizer has tokens.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_ids = frozenset(token for token in eos_ids if 0 <= token < vocab_size)
        self._prepared: Any = None  # llguidance's view of the tokenizer
        self._compiled: OrderedDict[Constraint, Matcher] = OrderedDict()
        self._lock = threading.Lock()
        self._preparing = threading.Lock()

    def start(self, constraint: Constraint) -> Matcher:
        """A matcher at the beginning of an output; refuses a definition that makes no sense."""
        with self._lock:
            matcher = self._compiled.get(constraint)
        if matcher is None:  # without the lock: a large one holds nobody else up
            matcher = self._compile(constraint)
        with self._lock:
            self._compiled[constraint] = matcher
            self._compiled.move_to_end(constraint)
            if len(self._compiled) > MAX_CACHED:
                self._compiled.popitem(last=False)
            return matcher.fork()

    def _compile(self, constraint: Constraint) -> Matcher:
        if len(constraint.definition) > MAX_DEFINITION:
            raise _refusal(constraint.kind, f"it has more than {MAX_DEFINITION} characters", None)
        library = _load_library()
        with self._preparing:
            if self._prepared is None:
                self._prepared = self._prepare(library)
        limits = library.LLParserLimits(verbose_errors=False)
        try:
            grammar = _to_grammar(library, constraint)
            matcher = library.LLMatcher(self._prepared, grammar, log_level=0, limits=limits)
        except ValueError as error:
            raise _refusal(constraint.kind, str(error)) from None
        except RecursionError:
            raise _refusal(constraint.kind, "it is nested too deeply", None) from None
        if matcher.is_error():
            raise _refusal(constraint.kind, matcher.get_error())
        warnings = matcher.get_grammar_warnings()
        if warnings:  # something in the definition would not be followed
            raise _refusal(constraint.kind, "; ".join(map(str, warnings)))
        compiled = Matcher(matcher, self._vocab_size, self._eos_ids, self._tokenizer)
        try:
            compiled.mask()  # the first mask is where a contradiction shows
        except RequestError:
            if "NoExtension" not in matcher.get_error():
                raise
            raise _refusal(constraint.kind, "there is no text that fits it", None) from None
        return compiled

    def _prepare(self, library: ModuleType) -> Any:
        if not self._eos_ids:
            raise RequestError(
                "the model names no token that ends a text, so a constrained output has no end",
                "add eos_token_id to generation_config.json, and compile again",
            )
        size = max(self._vocab_size, self._tokenizer.get_vocab_size(with_added_tokens=True))
        try:
            return library.LLTokenizer(
                self._tokenizer.to_str(), n_vocab=size, eos_token=sorted(self._eos_ids)
            )
        except ValueError as error:
            raise RequestError(
                f"constrained output cannot be had with this tokenizer: {_sentence(str(error))}",
                "byte-level tokenizers and those with byte fallback can be used",
            ) from None


def _load_library() -> ModuleType:
    try:
        import llguidance
    except ImportError as error:
        raise ResourceError(
            "constrained output needs llguidance, which is not installed",
            "pip install 'qeff[constraints]'",
        ) from error
    return llguidance


def _to_grammar(library: ModuleType, constraint: Constraint) -> str:
    """The definition in the form that llguidance's matchers take."""
    kind, text = constraint.kind, constraint.definition
    if kind is ConstraintKind.REGEX:
        return str(library.LLMatcher.grammar_from_regex(text))
    if kind is ConstraintKind.GRAMMAR:
        return str(library.grammar_from("grammar", text))
    if kind is ConstraintKind.CHOICE:
        choices = json.loads(text)
        if not isinstance(choices, list) or not all(isinstance(one, str) for one in choices):
            raise ValueError("it is no list of strings")
        if not choices:
            raise ValueError("the list of strings is empty")
        return str(library.LLMatcher.grammar_from_regex("|".join(map(_literal, choices))))
    schema = {"type": "object"} if kind is ConstraintKind.JSON_OBJECT else json.loads(text)
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise ValueError(f"it is no object but {text!r:.60}")
    defaults = {} if "x-guidance" in schema else {"whitespace_pattern": WHITESPACE}
    # A keyword that cannot be followed is refused, even where the schema asks to overlook it.
    return str(
        library.LLMatcher.grammar_from_json_schema(
            json.dumps(schema),
            defaults=defaults,
            overrides={"lenient": False},
        )
    )


def _literal(text: str) -> str:
    """A pattern that matches one text alone."""
    return "".join(c if c.isascii() and c.isalnum() else f"\\x{{{ord(c):x}}}" for c in text)


def _to_json(schema: bool | Mapping[str, Any]) -> str:
    try:
        return json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise _refusal(ConstraintKind.JSON_SCHEMA, str(error)) from None
    except RecursionError:
        raise _refusal(ConstraintKind.JSON_SCHEMA, "it is nested too deeply", None) from None


_HINTS = {
    ConstraintKind.JSON_SCHEMA: "docs/constraints.md lists the keywords that can be used",
    ConstraintKind.REGEX: "the syntax is that of Rust's regex: no look-around, no back-references",
    ConstraintKind.GRAMMAR: "the first rule is called start in Lark and root in GBNF",
}


def _refusal(kind: ConstraintKind, message: str, hint: str | None = "") -> RequestError:
    name = kind.replace("_", " ").replace("json", "JSON")
    hint = _HINTS.get(kind) if hint == "" else hint
    return RequestError(f"the {name} cannot be used: {_sentence(message)}", hint)


def _sentence(message: str) -> str:
    """A library's message on one line, without its pictures of the source."""
    lines = [line for line in message.splitlines() if not re.match(r"\s{3,}|\s*\d+ \||<", line)]
    text = " ".join(line.strip() for line in lines if line.strip())
    text = re.sub(
        r"^at 1\(8\): invalid regex .* \(in regex\): (regex parse error: error: )?", "", text
    )
    text = re.sub(r"^(?:at )?(\d+)\((\d+)\): ", r"line \1, column \2: ", text)
    return text if len(text) <= 300 else text[:300] + "…"
