"""The answer to a message request: blocks that are begun, grow and end, told by events.

One object follows one answer; the whole message is what its events have made. Knows nothing of
HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from qeff.apps.server.openai.chat_answer import OneCall
from qeff.apps.server.served import Progress, Served
from qeff.apps.server.tally import Tally
from qeff.generate import Result
from qeff.generate.fields import Field, Piece
from qeff.generate.request import FinishReason

Event = dict[str, Any]
KINDS = {
    Field.CONTENT: "text",
    Field.REASONING: "thinking",
    Field.CALL: "tool_use",
    Field.ARGUMENTS: "tool_use",
    Field.CALL_END: "tool_use",
}
STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "abort": "end_turn"}


class MessageAnswer:
    """Follows an answer and tells it.

    Args:
        served: The model that answers.
        tally: Counts the tokens.
        stops: The strings that end the answer.
        is_single: Whether calls after the first are left out.
    """

    def __init__(
        self, served: Served, tally: Tally, stops: tuple[str, ...], *, is_single: bool = False
    ) -> None:
        self._served = served
        self._tally = tally
        self._stops = stops
        self._belongs = OneCall() if is_single else None
        self._id = f"msg_{uuid4().hex}"
        self._blocks: list[dict[str, Any]] = []
        self._arguments = ""  # of the call that is open
        self._is_open = False
        self._stop_reason: str | None = None
        self._stop_sequence: str | None = None

    def begin(self) -> list[Event]:
        """What a stream begins with."""
        return [{"type": "message_start", "message": self.message()}, {"type": "ping"}]

    def step(self, progress: Progress) -> list[Event]:
        """The events of a step."""
        self._tally.note(progress)
        events: list[Event] = []
        for piece in progress.pieces:
            if self._belongs is None or self._belongs(piece):
                events += self._piece(piece)
        if progress.result is not None:
            self._stop_reason = STOPS[progress.finish or "stop"]
            self._stop_sequence = self._find_stop(progress.result)
            if self._stop_sequence is not None and self._stop_reason == "end_turn":
                self._stop_reason = "stop_sequence"
        return events

    def end(self) -> list[Event]:
        """What a stream ends with."""
        delta = {"stop_reason": self._stop_reason, "stop_sequence": self._stop_sequence}
        usage = self._tally.anthropic()
        return [
            *self._close(),
            {"type": "message_delta", "delta": delta, "usage": usage},
            {"type": "message_stop"},
        ]

    def whole(self) -> dict[str, Any]:
        """The whole message."""
        self.end()
        return self.message()

    def message(self) -> dict[str, Any]:
        """The message as far as it has come."""
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._served.name,
            "content": list(self._blocks),
            "stop_reason": self._stop_reason,
            "stop_sequence": self._stop_sequence,
            "usage": self._tally.anthropic(),
        }

    def _piece(self, piece: Piece) -> Iterator[Event]:
        kind = KINDS[piece.field]
        is_same = self._is_open and self._blocks[-1]["type"] == kind
        if piece.field is Field.CALL or not is_same:
            yield from self._close()
            yield self._open(kind, piece.text)
        if piece.field is Field.CALL_END:
            yield from self._close()
        elif piece.field is not Field.CALL:
            yield self._grow(piece)

    def _open(self, kind: str, name: str) -> Event:
        self._is_open = True
        block: dict[str, Any] = {"type": kind}
        if kind == "tool_use":
            self._arguments = ""
            block |= {"id": f"toolu_{uuid4().hex[:24]}", "name": name, "input": {}}
        elif kind == "thinking":
            block |= {"thinking": "", "signature": ""}
        else:
            block |= {"text": "", "citations": None}
        self._blocks.append(block)
        return self._event("content_block_start", content_block=dict(block))

    def _grow(self, piece: Piece) -> Event:
        if piece.field is Field.ARGUMENTS:
            self._arguments += piece.text
            delta = {"type": "input_json_delta", "partial_json": piece.text}
        else:
            key = KINDS[piece.field]
            self._blocks[-1][key] += piece.text
            delta = {"type": f"{key}_delta", key: piece.text}
        return self._event("content_block_delta", delta=delta)

    def _close(self) -> Iterator[Event]:
        if not self._is_open:
            return
        self._is_open = False
        if self._blocks[-1]["type"] == "tool_use":
            self._blocks[-1]["input"] = _read(self._arguments)
        yield self._event("content_block_stop")

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "index": len(self._blocks) - 1, **fields}

    def _find_stop(self, result: Result) -> str | None:
        """Which string ended the answer: it stands in the tokens where the text ends."""
        if result.finish is not FinishReason.STOP:
            return None
        written = self._served.decode(result.token_ids, skip_special_tokens=False)
        found = [(written.find(stop), stop) for stop in self._stops if stop in written]
        return min(found)[1] if found else None


def _read(arguments: str) -> Any:
    """The arguments as values; nothing where an answer was cut in the middle of them."""
    try:
        values = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}
