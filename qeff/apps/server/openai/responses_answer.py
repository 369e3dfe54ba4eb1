"""The answer to a response request: items that are begun, grow and are finished, told by events.

One object follows one answer; the whole response is what its events have made. Knows nothing of
HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any
from uuid import uuid4

from qeff.apps.server.openai.chat_answer import OneCall, new_call_id
from qeff.apps.server.openai.token_logprobs import token_logprobs
from qeff.apps.server.served import Progress, Served
from qeff.apps.server.tally import Tally
from qeff.generate.fields import Field, Piece

Event = dict[str, Any]
KINDS = {
    Field.CONTENT: "message",
    Field.REASONING: "reasoning",
    Field.CALL: "function_call",
    Field.ARGUMENTS: "function_call",
    Field.CALL_END: "function_call",
}


class ResponseAnswer:
    """Follows an answer and tells it.

    Args:
        served: The model that answers.
        tally: Counts the tokens.
        created: When the request came, in seconds since 1970.
        settings: What the response repeats of its request.
        has_logprobs: Whether log-probabilities are shown.
        is_single: Whether calls after the first are left out.
    """

    def __init__(
        self,
        served: Served,
        tally: Tally,
        created: int,
        settings: Mapping[str, Any],
        *,
        has_logprobs: bool = False,
        is_single: bool = False,
    ) -> None:
        self._served = served
        self._tally = tally
        self._created = created
        self._settings = settings
        self._has_logprobs = has_logprobs
        self._belongs = OneCall() if is_single else None
        self._id = f"resp_{uuid4().hex}"
        self._items: list[dict[str, Any]] = []
        self._is_open = False  # whether the last item may grow
        self._finish: str | None = None
        self._num_events = 0

    def begin(self) -> list[Event]:
        """What a stream begins with."""
        whole = self.response("in_progress")
        return [
            self._event("response.created", response=whole),
            self._event("response.in_progress", response=whole),
        ]

    def step(self, progress: Progress) -> list[Event]:
        """The events of a step."""
        self._tally.note(progress)
        logprobs = token_logprobs(self._served, progress.choices) if self._has_logprobs else []
        events: list[Event] = []
        for piece in progress.pieces:
            if self._belongs is not None and not self._belongs(piece):
                continue
            events += self._piece(piece, logprobs)
            logprobs = []
        if progress.result is not None:
            self._finish = progress.finish
        return events

    def end(self) -> list[Event]:
        """What a stream ends with."""
        events = list(self._close())
        if not self._items:  # the model ended at once: an empty message says so
            events += [*self._open("message"), *self._close()]
        status = self._status()
        return [*events, self._event(f"response.{status}", response=self.response(status))]

    def whole(self) -> dict[str, Any]:
        """The whole response."""
        self.end()
        return self.response(self._status())

    def response(self, status: str) -> dict[str, Any]:
        """The response as far as it has come."""
        is_cut = status == "incomplete"
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "model": self._served.name,
            "output": [dict(item) for item in self._items],
            "previous_response_id": None,
            "store": False,
            "service_tier": "default",
            "truncation": "disabled",
            "usage": None if status == "in_progress" else self._tally.responses(),
            **self._settings,
        }

    def _status(self) -> str:
        return "incomplete" if self._finish in ("length", "abort") else "completed"

    def _piece(self, piece: Piece, logprobs: list[dict[str, Any]]) -> Iterator[Event]:
        kind = KINDS[piece.field]
        is_same = self._is_open and self._items[-1]["type"] == kind
        if piece.field is Field.CALL or not is_same:
            yield from self._close()
            yield from self._open(kind, piece.text)
        if piece.field is Field.CALL_END:
            yield from self._close()
        elif piece.field is not Field.CALL:
            yield self._grow(piece.text, logprobs)

    def _open(self, kind: str, name: str = "") -> Iterator[Event]:
        self._is_open = True
        item: dict[str, Any] = {"type": kind, "status": "in_progress"}
        if kind == "function_call":
            item |= {"id": f"fc_{uuid4().hex}", "call_id": new_call_id()}
            item |= {"name": name, "arguments": ""}
        elif kind == "reasoning":
            item |= {"id": f"rs_{uuid4().hex}", "summary": [], "content": []}
        else:
            item |= {"id": f"msg_{uuid4().hex}", "role": "assistant", "content": []}
        self._items.append(item)
        yield self._item_event("response.output_item.added", item=dict(item))
        if kind == "function_call":
            return
        part: dict[str, Any] = {"type": "reasoning_text", "text": ""}
        if kind == "message":
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        item["content"] = [part]
        yield self._part_event("response.content_part.added", part=deepcopy(part))  # it will grow

    def _grow(self, text: str, logprobs: list[dict[str, Any]]) -> Event:
        item = self._items[-1]
        if item["type"] == "function_call":
            item["arguments"] += text
            return self._item_event(
                "response.function_call_arguments.delta", item_id=item["id"], delta=text
            )
        part = item["content"][0]
        part["text"] += text
        if item["type"] == "reasoning":
            return self._part_event("response.reasoning_text.delta", delta=text)
        part["logprobs"] += logprobs
        return self._part_event("response.output_text.delta", delta=text, logprobs=logprobs)

    def _close(self) -> Iterator[Event]:
        if not self._is_open:
            return
        self._is_open = False
        item = self._items[-1]
        item["status"] = "completed" if self._finish != "length" else "incomplete"
        if item["type"] == "function_call":
            yield self._item_event(
                "response.function_call_arguments.done",
                item_id=item["id"],
                name=item["name"],
                arguments=item["arguments"],
            )
        else:
            part = item["content"][0]
            if item["type"] == "reasoning":
                yield self._part_event("response.reasoning_text.done", text=part["text"])
            else:
                yield self._part_event(
                    "response.output_text.done", text=part["text"], logprobs=part["logprobs"]
                )
            yield self._part_event("response.content_part.done", part=dict(part))
        yield self._item_event("response.output_item.done", item=dict(item))

    def _event(self, kind: str, **fields: Any) -> Event:
        self._num_events += 1
        return {"type": kind, "sequence_number": self._num_events - 1, **fields}

    def _item_event(self, kind: str, **fields: Any) -> Event:
        return self._event(kind, output_index=len(self._items) - 1, **fields)

    def _part_event(self, kind: str, **fields: Any) -> Event:
        return self._item_event(kind, item_id=self._items[-1]["id"], content_index=0, **fields)
