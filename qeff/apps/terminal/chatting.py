"""A conversation on the terminal: reads lines, runs commands, shows answers as they come.

Reasoning is dim on a terminal and goes to stderr otherwise, so that a pipe holds answers alone.
Ctrl-C ends an answer; a second one, or Ctrl-D at the prompt, ends the program.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff.apps.chat.settings import changed, shown
from qeff.apps.terminal.border import say
from qeff.apps.terminal.screen import Screen, dim_on_stdout
from qeff.core.errors import OptionValueError, QeffError, unknown_name
from qeff.generate import Constraint, FinishReason, Result, SamplingParams
from qeff.generate.fields import Field, Piece
from qeff.generate.params import MAX_SEED

if TYPE_CHECKING:
    from qeff.apps.chat.conversation import Conversation
    from qeff.apps.chat.partner import Partner

PROMPT = "> "


class Chat:
    """The loop from line to answer, and the commands.

    Args:
        screen: Where notes go.
        partner: Answers.
        conversation: What was said so far.
        params: How tokens are chosen, until ``/set`` changes it.
        constraint: What every answer must fit.
    """

    def __init__(
        self,
        screen: Screen,
        partner: Partner,
        conversation: Conversation,
        params: SamplingParams,
        constraint: Constraint | None = None,
    ) -> None:
        self._screen = screen
        self._partner = partner
        self._conversation = conversation
        self._params = params
        self._constraint = constraint
        self._num_tries = 0  # of the last question, besides the first
        self._has_failed = False
        self._is_over = False
        self._commands: dict[str, tuple[Callable[[str], None], str]] = {
            "/system": (self._system, "TEXT  who the model is; without a text, nobody"),
            "/set": (self._set, "NAME=VALUE  a sampling setting; without one, lists them"),
            "/retry": (self._retry, "answer the last question again"),
            "/tool": (self._tool, "TEXT  the result of a tool that the model called"),
            "/clear": (self._clear, "forget what was said"),
            "/save": (self._save, "FILE  write the conversation"),
            "/load": (self._load, "FILE  go on with a written conversation"),
            "/help": (self._help, "this list"),
            "/exit": (self._exit, "leave; so does Ctrl-D"),
        }

    def run(self) -> int:
        """Talk until the lines end; whether every line of a pipe was answered is the exit code."""
        is_typed = sys.stdin.isatty()
        if hasattr(sys.stdin, "reconfigure"):  # bytes that are no text harm nobody
            sys.stdin.reconfigure(errors="replace")
        for line in typed_lines(self._screen) if is_typed else piped_lines():
            if not line.strip():
                continue
            try:
                self._take(line)
            except QeffError as error:
                say(error.what, error.hint)
                self._has_failed = True
            if self._is_over:
                break
        return int(self._has_failed and not is_typed)

    def _take(self, line: str) -> None:
        if not line.startswith("/"):
            self._num_tries = 0
            self._ask("user", line)
            return
        name, _, rest = line.strip().partition(" ")
        if name not in self._commands:
            raise unknown_name("command", name, self._commands)
        self._commands[name][0](rest.strip())

    def _ask(self, role: str, text: str) -> None:
        self._conversation.add(role, text)
        is_answered = False
        try:
            is_answered = self._answer()
        finally:
            if not is_answered:  # a question without an answer would stand before the next one
                self._conversation.take_back()

    def _answer(self) -> bool:
        """Show the answer and keep it; False when there is none."""
        params = self._params
        if self._num_tries and params.seed is not None:
            params = replace(params, seed=(params.seed + self._num_tries) % (MAX_SEED + 1))
        voice = Voice(self._screen)
        with interrupts() as is_interrupted:
            turn = self._partner.ask(
                self._conversation.messages,
                params,
                constraint=self._constraint,
                listen=voice.hear,
                is_unwanted=is_interrupted,
            )
        voice.end()
        self._screen.note(measured(turn.result))
        if turn.result.finish is FinishReason.CONTEXT:
            self._screen.note(
                "the context is full: /clear starts over, a larger --ctx-len holds more"
            )
        if turn.answer.calls:
            self._screen.note("/tool TEXT answers a call")
        said = turn.answer
        is_said = bool(said.content or said.calls or said.reasoning)
        if is_said or turn.result.finish is not FinishReason.CANCELLED:
            self._conversation.add_answer(said)
            return True
        return False

    # ---- commands ------------------------------------------------------------------------------

    def _system(self, text: str) -> None:
        self._conversation.set_system(text or None)

    def _set(self, words: str) -> None:
        if words:
            self._params = changed(self._params, words)
        self._screen.note(shown(self._params))

    def _retry(self, _: str) -> None:
        messages = self._conversation.messages
        if len(messages) <= self._conversation.num_system:
            raise OptionValueError("there is no question to answer again")
        if self._params.is_greedy:
            self._screen.note("temperature is 0: the answer will be the same")
        self._num_tries += 1
        kept = [messages.pop()] if messages[-1]["role"] == "assistant" else []
        is_answered = False
        try:
            is_answered = self._answer()
        finally:
            if not is_answered:
                messages.extend(kept)

    def _tool(self, text: str) -> None:
        messages = self._conversation.messages
        if not messages or "tool_calls" not in messages[-1]:
            raise OptionValueError("the model has called no tool", "/tool answers a call")
        self._ask("tool", text)

    def _clear(self, _: str) -> None:
        self._conversation.clear()

    def _save(self, name: str) -> None:
        path = _path("/save", name)
        self._conversation.save(path)
        self._screen.note(f"saved: {path}")

    def _load(self, name: str) -> None:
        path = _path("/load", name)
        self._conversation.load(path)
        count = len(self._conversation.messages)
        self._screen.note(f"loaded: {count} message{'s' * (count != 1)} from {path}")

    def _help(self, _: str) -> None:
        for name, (_command, text) in self._commands.items():
            self._screen.note(f"{name:8} {text}")
        self._screen.note("Ctrl-C ends an answer")

    def _exit(self, _: str) -> None:
        self._is_over = True


class Voice:
    """Writes the pieces of one answer."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._field: Field | None = None

    def hear(self, piece: Piece) -> None:
        """Write one piece at once."""
        before, self._field = self._field, piece.field
        if before is Field.REASONING and piece.field is not before:
            self._write_thought("\n\n" if sys.stdout.isatty() else "\n")
        elif before is Field.CALL_END or (before is Field.CONTENT and piece.field is Field.CALL):
            self._write("\n")
        if piece.field is Field.REASONING:
            self._write_thought(piece.text)
        else:
            self._write(_as_call(piece))

    def end(self) -> None:
        """The answer is over."""
        self._write("\n")

    def _write_thought(self, text: str) -> None:
        if sys.stdout.isatty():
            self._write(dim_on_stdout(text))
        elif not self._screen.is_quiet:
            sys.stderr.write(text)
            sys.stderr.flush()

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _as_call(piece: Piece) -> str:
    """A piece as it is written: calls look like calls."""
    if piece.field is Field.CALL:
        return f"-> {piece.text}("
    return ")" if piece.field is Field.CALL_END else piece.text


def measured(result: Result) -> str:
    """How quick an answer was, in one line."""
    count = len(result.token_ids)
    parts = [f"{count} token{'s' * (count != 1)}"]
    if result.decode_tokens_per_s:
        parts.append(f"{result.decode_tokens_per_s:.1f} tokens/s")
    parts.append(f"time to first token {result.timings.prefill_s:.2f} s")
    if result.num_drafted:
        parts.append(f"{result.num_accepted} of {result.num_drafted} guessed tokens right")
    if result.num_cached_tokens:
        parts.append(f"{result.num_cached_tokens} of {len(result.prompt)} prompt tokens reused")
    if result.finish is FinishReason.CANCELLED:
        parts.append("interrupted")
    return ", ".join(parts)


def typed_lines(screen: Screen) -> Iterator[str]:
    """Lines from a person, with editing where there is a library for it."""
    with suppress(ImportError):
        import readline  # noqa: F401
    while True:
        try:
            yield input(PROMPT)
        except KeyboardInterrupt:
            print()
            screen.note("/exit or Ctrl-D leaves")
        except EOFError:
            print()
            return


def piped_lines() -> Iterator[str]:
    """Lines from a pipe or a file."""
    for line in sys.stdin:
        yield line.rstrip("\r\n")


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Ctrl-C sets a mark, which is asked for by what is yielded; a second one is an interrupt."""
    pressed = threading.Event()

    def press(number: int, frame: Any) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()

    if threading.current_thread() is not threading.main_thread():
        yield pressed.is_set
        return
    before = signal.signal(signal.SIGINT, press)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def _path(command: str, name: str) -> Path:
    if not name:
        raise OptionValueError(f"{command} needs a file", f"for example: {command} chat.json")
    return Path(name).expanduser()
