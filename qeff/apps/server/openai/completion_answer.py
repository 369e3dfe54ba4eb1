"""What a completion says, whole or piece by piece, in OpenAI's words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

from qeff.apps.server.openai.completion_shapes import CompletionRequest
from qeff.apps.server.openai.token_logprobs import finite
from qeff.apps.server.served import Asked, Progress, Served
from qeff.generate.request import Choice, Result


class CompletionAnswer:
    """The outputs of all prompts of one request.

    Args:
        served: The model.
        asked: The prompts.
        body: The request.
        created: When it came, in seconds since 1970.
    """

    def __init__(
        self, served: Served, asked: Sequence[Asked], body: CompletionRequest, created: int
    ) -> None:
        self._served = served
        self._asked = asked
        self._body = body
        self._n = body.n or 1
        self._head = {
            "id": f"cmpl-{uuid4().hex}",
            "object": "text_completion",
            "created": created,
            "model": served.name,
        }
        self._results: dict[int, tuple[Result, str]] = {}  # by index, with OpenAI's reason
        self._offsets: dict[int, int] = {}  # how many characters of each output were told
        options = body.stream_options
        self._has_usage = bool(options and options.include_usage)
        self._is_scored_only = body.max_tokens == 0

    def note(self, which: int, progress: Progress) -> None:
        """Remember the end of an output."""
        if progress.result is not None:
            index = which * self._n + progress.index
            self._results[index] = progress.result, progress.finish or "stop"

    def whole(self) -> dict[str, Any]:
        """The answer as one object."""
        choices = [self._choice(index) for index in sorted(self._results)]
        return {**self._head, "choices": choices, "usage": self._usage()}

    def chunks(self, which: int, progress: Progress) -> Iterator[dict[str, Any]]:
        """What a step adds, as chunks of a stream."""
        self.note(which, progress)
        index = which * self._n + progress.index
        text, choices = progress.text, progress.choices
        if self._is_scored_only:
            text, choices = "", ()
        is_first = index not in self._offsets
        if is_first:
            self._offsets[index] = 0
            if self._body.echo:
                text = self._prompt_text(which) + text
        if (
            not text
            and progress.finish is None
            and not (choices and self._body.logprobs is not None)
        ):
            return
        logprobs = None
        if self._body.logprobs is not None and choices:
            logprobs = self._logprobs(choices, self._offsets[index])
        self._offsets[index] += len(text)
        choice = {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": "length" if self._is_scored_only else progress.finish,
        }
        yield {**self._head, "choices": [choice]} | ({"usage": None} if self._has_usage else {})

    def last_chunks(self) -> Iterator[dict[str, Any]]:
        """What a stream ends with."""
        if self._has_usage:
            yield {**self._head, "choices": [], "usage": self._usage()}

    def _choice(self, index: int) -> dict[str, Any]:
        result, finish = self._results[index]
        text = "" if self._is_scored_only else result.text
        choices = () if self._is_scored_only else result.logprobs or ()
        if self._body.echo:
            text = self._prompt_text(index // self._n) + text
            choices = (*(result.prompt_logprobs or ()), *choices)
        return {
            "index": index,
            "text": text,
            "logprobs": self._logprobs(choices) if self._body.logprobs is not None else None,
            "finish_reason": "length" if self._is_scored_only else finish,
        }

    def _prompt_text(self, which: int) -> str:
        prompt = self._body.prompts()[which]
        return prompt if isinstance(prompt, str) else self._served.decode(prompt)

    def _logprobs(self, choices: Sequence[Choice], offset: int = 0) -> dict[str, Any]:
        tokens = [self._served.token_text(choice.token) for choice in choices]
        offsets = []
        for token in tokens:
            offsets.append(offset)
            offset += len(token)
        return {
            "text_offset": offsets,
            "tokens": tokens,
            "token_logprobs": [
                None if one.logprob is None else finite(one.logprob) for one in choices
            ],
            "top_logprobs": [self._top(one) for one in choices],
        }

    def _top(self, choice: Choice) -> dict[str, float] | None:
        if choice.logprob is None:
            return None
        named = {self._served.token_text(token): finite(number) for token, number in choice.top}
        return named or None

    def _usage(self) -> dict[str, Any]:
        num_prompt = sum(len(one.prompt) for one in self._asked)
        results = [result for result, _ in self._results.values()]
        num_output = 0 if self._is_scored_only else sum(len(one.token_ids) for one in results)
        cached = {
            index // self._n: result.num_cached_tokens
            for index, (result, _) in sorted(self._results.items(), reverse=True)
        }  # the first output of each prompt
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_output,
            "total_tokens": num_prompt + num_output,
            "prompt_tokens_details": {"cached_tokens": sum(cached.values())},
        }
