"""The model as a partner in a conversation: asks the engine for the next answer.

The conversation goes through the model's chat template each time; what the engine has computed of
it already is taken from its cache. Knows nothing of who speaks and where answers are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from qeff.apps.answers import Answerer
from qeff.core.errors import RequestError
from qeff.generate import Constraint, Request, Result, SamplingParams
from qeff.generate.fields import Answer, FieldSplitter, Piece, gather

Listener = Callable[[Piece], None]
NUM_LOOKED_AT = 32  # tokens at the end of a prompt, where a template may begin the reasoning


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer: its fields, and all that the engine says of it."""

    answer: Answer
    result: Result


class Partner:
    """A model that answers.

    Args:
        answerer: The opened container; it must have a chat template.
        tools: Functions that the model may call, in the form that chat templates take.
    """

    def __init__(self, answerer: Answerer, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self._engine = answerer.engine
        self._text = answerer.text
        if not self._text.has_chat_template:
            raise RequestError(
                "the model has no chat template", "use qeff infer, which takes plain text"
            )
        self._tools = list(tools)
        self._schemas = dict(_schema(tool) for tool in tools)
        markers = self._text.answer_format.markers
        special = {self._text.tokenizer.token_to_id(mark) for mark in markers}
        self._keeps_special = bool(special & self._text.special_ids)

    def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams,
        *,
        constraint: Constraint | None = None,
        listen: Listener,
        is_unwanted: Callable[[], bool],
    ) -> Turn:
        """Give the next answer piece by piece; ``is_unwanted`` ends it between two steps."""
        ids = self._text.encode_chat(messages, tools=self._tools or None)
        num_most = self._engine.session.caps.ctx_len
        if len(ids) >= num_most:
            raise RequestError(
                f"the context is full: the conversation has {len(ids)} tokens, and {num_most} fit",
                "/clear starts over; a larger --ctx-len holds more",
            )
        if self._keeps_special:
            params = replace(params, skip_special_tokens=False)
        ending = self._text.decode(ids[-NUM_LOOKED_AT:], skip_special_tokens=False)
        splitter = FieldSplitter(self._text.answer_format, self._schemas, ending)
        request = Request(tuple(ids), params, constraint=constraint)
        pieces: list[Piece] = []

        def hear(new: Sequence[Piece]) -> None:
            for piece in new:
                pieces.append(piece)
                listen(piece)

        result = self._run(request, lambda text: hear(splitter.push(text)), is_unwanted)
        hear(splitter.flush())
        return Turn(gather(pieces), result)

    def _run(
        self, request: Request, push: Callable[[str], None], is_unwanted: Callable[[], bool]
    ) -> Result:
        self._engine.add(request)
        try:
            while True:
                deltas = self._engine.step()
                if is_unwanted():
                    deltas += self._engine.end(request.id)
                for delta in deltas:
                    push(delta.text)
                    if delta.result is not None:
                        if delta.result.error is not None:
                            raise delta.result.error
                        return delta.result
        finally:
            self._engine.cancel(request.id)


def _schema(tool: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The name of a function and the schema of its parameters."""
    function = tool.get("function", tool) if isinstance(tool, Mapping) else {}
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise RequestError(f"a tool has no name: {tool!r:.100}", "give a list of functions")
    return name, function.get("parameters") or {}
