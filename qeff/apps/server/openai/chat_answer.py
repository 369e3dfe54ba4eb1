"""The answer to a chat request in OpenAI's words: as a whole, or as the chunks of a stream.

One object follows one answer. Thoughts are given by both names in use, ``reasoning_content`` and
``reasoning``. Knows nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from qeff.apps.server.openai.token_logprobs import token_logprobs
from qeff.apps.server.served import Progress, Served
from qeff.apps.server.tally import Tally
from qeff.generate.fields import Field, Piece


def new_call_id() -> str:
    """A name for a call, which the answer to it refers to."""
    return f"call_{uuid4().hex[:24]}"


class OneCall:
    """Leaves all calls but the first out of an answer, for clients that want one at most."""

    def __init__(self) -> None:
        self._num_calls = 0

    def __call__(self, piece: Piece) -> bool:
        """Whether a piece belongs to the answer."""
        self._num_calls += piece.field is Field.CALL
        is_call = piece.field in (Field.CALL, Field.ARGUMENTS, Field.CALL_END)
        return not is_call or self._num_calls <= 1


class Output:
    """One of the n outputs: the deltas of its stream, and the message they make."""

    def __init__(self, *, is_single: bool) -> None:
        self.content = ""
        self.reasoning = ""
        self.calls: list[dict[str, Any]] = []
        self.logprobs: list[dict[str, Any]] = []
        self.finish: str | None = None
        self.is_begun = False
        self._belongs = OneCall() if is_single else None

    def deltas(self, pieces: tuple[Piece, ...]) -> Iterator[dict[str, Any]]:
        """What pieces add, as the deltas of chunks; kept for the whole message as well."""
        for piece in pieces:
            if self._belongs is not None and not self._belongs(piece):
                continue
            delta = self._delta(piece)
            if delta is not None:
                yield delta

    def message(self) -> dict[str, Any]:
        """The whole message."""
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if self.calls and not self.content else self.content,
            "refusal": None,
        }
        if self.reasoning:
            message |= {"reasoning_content": self.reasoning, "reasoning": self.reasoning}
        if self.calls:
            message["tool_calls"] = self.calls
        return message

    def _delta(self, piece: Piece) -> dict[str, Any] | None:
        if piece.field is Field.CONTENT:
            self.content += piece.text
            return {"content": piece.text}
        if piece.field is Field.REASONING:
            self.reasoning += piece.text
            return {"reasoning_content": piece.text, "reasoning": piece.text}
        if piece.field is Field.CALL_END:
            return None
        if piece.field is Field.CALL:
            called = {"name": piece.text, "arguments": ""}
            call = {"id": new_call_id(), "type": "function", "function": called}
            self.calls.append(call)
            return {
                "tool_calls": [{"index": len(self.calls) - 1, **call, "function": dict(called)}]
            }
        self.calls[-1]["function"]["arguments"] += piece.text
        shown = {"index": len(self.calls) - 1, "function": {"arguments": piece.text}}
        return {"tool_calls": [shown]}


class ChatAnswer:
    """Follows an answer and tells it.

    Args:
        served: The model that answers.
        tally: Counts the tokens.
        created: When the request came, in seconds since 1970.
        has_logprobs: Whether log-probabilities are shown.
        has_usage: Whether a stream ends with the usage.
        is_single: Whether calls after the first are left out.
    """

    def __init__(
        self,
        served: Served,
        tally: Tally,
        created: int,
        *,
        has_logprobs: bool = False,
        has_usage: bool = False,
        is_single: bool = False,
    ) -> None:
        self.id = f"chatcmpl-{uuid4().hex}"
        self._served = served
        self._tally = tally
        self._created = created
        self._has_logprobs = has_logprobs
        self._has_usage = has_usage
        self._is_single = is_single
        self._outputs: dict[int, Output] = {}

    def chunks(self, progress: Progress) -> Iterator[dict[str, Any]]:
        """The chunks that a step adds to the stream."""
        self._tally.note(progress)
        output = self._output(progress.index)
        logprobs = self._logprobs(output, progress)
        if not output.is_begun:
            output.is_begun = True
            yield self._chunk(progress.index, {"role": "assistant", "content": ""})
        for delta in output.deltas(progress.pieces):
            yield self._chunk(progress.index, delta, logprobs)
            logprobs = None
        if progress.result is not None:
            output.finish = progress.finish
            yield self._chunk(progress.index, {}, logprobs, progress.finish)
        elif logprobs:
            yield self._chunk(progress.index, {"content": ""}, logprobs)

    def last_chunks(self) -> Iterator[dict[str, Any]]:
        """What ends the stream: the usage, where it is wanted."""
        if self._has_usage:
            yield {**self._base("chat.completion.chunk", []), "usage": self._tally.openai()}

    def note(self, progress: Progress) -> None:
        """Follow a step of an answer that is given as a whole."""
        for _ in self.chunks(progress):
            pass

    def whole(self) -> dict[str, Any]:
        """The whole answer."""
        choices = [
            {
                "index": index,
                "message": output.message(),
                "logprobs": {"content": output.logprobs} if self._has_logprobs else None,
                "finish_reason": output.finish,
            }
            for index, output in sorted(self._outputs.items())
        ]
        return {**self._base("chat.completion", choices), "usage": self._tally.openai()}

    def _output(self, index: int) -> Output:
        if index not in self._outputs:
            self._outputs[index] = Output(is_single=self._is_single)
        return self._outputs[index]

    def _logprobs(self, output: Output, progress: Progress) -> list[dict[str, Any]] | None:
        if not self._has_logprobs:
            return None
        found = token_logprobs(self._served, progress.choices)
        output.logprobs += found
        return found

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: list[dict[str, Any]] | None = None,
        finish: str | None = None,
    ) -> dict[str, Any]:
        shown = {"content": logprobs} if logprobs else None
        choice = {"index": index, "delta": delta, "logprobs": shown, "finish_reason": finish}
        chunk = self._base("chat.completion.chunk", [choice])
        return {**chunk, "usage": None} if self._has_usage else chunk

    def _base(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self._created,
            "model": self._served.name,
            "choices": choices,
        }
