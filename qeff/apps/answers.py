"""Answers from a container: opens it, turns prompts into requests and runs them all.

The one way from a container to text that the command line and the Python class share. Imports
neither torch nor transformers; a tokenizer of transformers is only used when the caller hands one
over.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qeff.apps.results import CloudAI100ExecInfo, PerfMetrics
from qeff.container import Container
from qeff.core.errors import OptionTypeError, RequestError
from qeff.generate import Engine, Request, Result, SamplingParams, Text
from qeff.runtime import open_session

Listener = Callable[[int, str, bool], None]  # which prompt, what was added, whether it was the last


def deaf(index: int, piece: str, is_last: bool) -> None:
    """The listener that hears nothing."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The results in the order of the prompts, and how long all of them took together."""

    results: tuple[Result, ...]
    total_s: float
    batch_size: int

    @property
    def num_tokens(self) -> int:
        return sum(len(result.token_ids) for result in self.results)

    @property
    def ttft_s(self) -> float:
        """Seconds from the start of a prompt's prefill to its first token, mean over prompts."""
        return _mean([result.timings.prefill_s for result in self.results])

    @property
    def decode_tokens_per_s(self) -> float:
        """Decoded tokens per second of one sequence, mean over the prompts that decoded any."""
        return _mean([r.decode_tokens_per_s for r in self.results if len(r.token_ids) > 1])

    def metrics(self) -> PerfMetrics:
        """The same in QEfficient's terms."""
        each = self.num_tokens / min(self.batch_size, len(self.results))
        return PerfMetrics(
            prefill_time=self.ttft_s,
            decode_perf=self.decode_tokens_per_s,
            total_perf=each / self.total_s if self.total_s > 0 else 0.0,
            total_time=self.total_s,
        )


class Answerer:
    """An opened container and its engine; close it when done."""

    def __init__(
        self, container: Container, *, threads: int | None = None, text: Text | None = None
    ) -> None:
        self.container = container
        self.text = text or Text.from_container(container)
        self.engine = Engine(open_session(container, threads=threads), self.text)

    def close(self) -> None:
        """Give memory and threads back."""
        self.engine.close()

    def __enter__(self) -> Answerer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def encode(self, prompt: str, *, chat: bool = False, system: str | None = None) -> list[int]:
        """Token ids of a prompt, by the chat template when it is one turn of a conversation."""
        if not chat and system is None:
            return self.text.encode(prompt)
        messages = [{"role": "system", "content": system}] if system is not None else []
        return self.text.encode_chat([*messages, {"role": "user", "content": prompt}])

    def run(
        self,
        prompts: Sequence[Sequence[int]],
        params: Sequence[SamplingParams],
        listen: Listener = deaf,
    ) -> Answers:
        """Answer every prompt, as many side by side as the container was compiled for."""
        if not prompts:
            raise RequestError("there is no prompt", "give at least one")
        began = time.perf_counter()
        requests = [Request(tuple(ids), how) for ids, how in zip(prompts, params, strict=True)]
        order = {request.id: i for i, request in enumerate(requests)}
        results: dict[int, Result] = {}
        try:
            for request in requests:
                self.engine.add(request)
            while self.engine.has_work:
                for delta in self.engine.step():
                    listen(order[delta.request_id], delta.text, delta.result is not None)
                    if delta.result is not None:
                        results[order[delta.request_id]] = delta.result
        finally:
            for request in requests:
                self.engine.cancel(request.id)
        return Answers(
            results=tuple(results[i] for i in range(len(requests))),
            total_s=time.perf_counter() - began,
            batch_size=self.container.manifest.options.max_batch,
        )

    def exec_info(self, answers: Answers) -> CloudAI100ExecInfo:
        """QEfficient's result: texts, and ids padded to one width."""
        longest = max(len(result.token_ids) for result in answers.results)
        width = max(self.container.manifest.options.ctx_len, longest)
        pad = (
            self.text.pad_id if self.text.pad_id is not None else min(self.text.eos_ids, default=0)
        )
        ids = np.full((len(answers.results), width), pad, np.int64)
        for row, result in zip(ids, answers.results, strict=True):
            row[: len(result.token_ids)] = result.token_ids
        return CloudAI100ExecInfo(
            batch_size=answers.batch_size,
            generated_texts=[result.text for result in answers.results],
            generated_ids=ids,
            perf_metrics=answers.metrics(),
        )


def text_of_tokenizer(tokenizer: Any, container: Container) -> Text:
    """The text side of a transformers tokenizer; what it does not say is the container's."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not hasattr(backend, "to_str"):
        raise OptionTypeError(
            f"a {type(tokenizer).__name__} is not a fast tokenizer",
            "load it with AutoTokenizer, or pass tokenizer=None to use the container's own",
        )
    special = {
        name: value
        for name, value in getattr(tokenizer, "special_tokens_map", {}).items()
        if isinstance(value, str)
    }
    config: Mapping[str, Any] = {
        **special,
        "chat_template": getattr(tokenizer, "chat_template", None),
    }
    own = container.text_files()
    kept = {name: own[name] for name in ("generation_config.json", "config.json") if name in own}
    return Text(
        {
            **kept,
            "tokenizer.json": backend.to_str().encode(),
            "tokenizer_config.json": json.dumps(config).encode(),
        }
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
