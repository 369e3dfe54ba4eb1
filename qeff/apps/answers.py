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
from typing import TYPE_CHECKING, Any

import numpy as np

from qeff.apps.opening import Setup, open_engine
from qeff.apps.results import CloudAI100ExecInfo, PerfMetrics
from qeff.container import Container
from qeff.core.errors import OptionTypeError, RequestError
from qeff.generate import Constraint, Delta, Request, Result, SamplingParams, Text
from qeff.generate.outputs import combine

if TYPE_CHECKING:
    from qeff.generate.speculation.governor import SpeculationStats

Listener = Callable[[int, str, bool], None]  # which prompt, what was added, whether it was the last


def deaf(index: int, piece: str, is_last: bool) -> None:
    """The listener that hears nothing."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The results in the order of the prompts, and how long all of them took together."""

    results: tuple[Result, ...]
    total_s: float
    batch_size: int
    speculation: SpeculationStats | None = None  # of the engine, since it was opened

    @property
    def outputs(self) -> list[Result]:
        """Every output: for each prompt its result and the alternatives to it."""
        return [one for result in self.results for one in (result, *result.alternatives)]

    @property
    def num_tokens(self) -> int:
        return sum(len(output.token_ids) for output in self.outputs)

    @property
    def num_reused_tokens(self) -> int:
        """Tokens of prompts that were in the cache already."""
        return sum(output.num_cached_tokens for output in self.outputs)

    @property
    def ttft_s(self) -> float:
        """Seconds from the start of a prompt's prefill to its first token, mean over prompts."""
        return _mean([result.timings.prefill_s for result in self.results])

    @property
    def decode_tokens_per_s(self) -> float:
        """Decoded tokens per second of one sequence, mean over the prompts that decoded any."""
        return _mean([r.decode_tokens_per_s for r in self.outputs if len(r.token_ids) > 1])

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
        self,
        container: Container,
        *,
        setup: Setup | None = None,
        text: Text | None = None,
    ) -> None:
        self.container = container
        self.text = text or Text.from_container(container)
        self.engine = open_engine(container, self.text, setup or Setup())

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
        constraint: Constraint | None = None,
    ) -> Answers:
        """Answer every prompt, as many side by side as the container was compiled for."""
        if not prompts:
            raise RequestError("there is no prompt", "give at least one")
        began = time.perf_counter()
        requests = [
            Request(tuple(ids), how, constraint=constraint)
            for ids, how in zip(prompts, params, strict=True)
        ]
        try:
            for request in requests:
                self.engine.add(request)
            results = self._follow(requests, listen)
        finally:
            for request in requests:
                self.engine.cancel(request.id)
        return Answers(
            results=tuple(results[request.id] for request in requests),
            total_s=time.perf_counter() - began,
            batch_size=self.container.manifest.options.max_batch,
            speculation=self.engine.stats.speculation,
        )

    def _follow(self, requests: Sequence[Request], listen: Listener) -> dict[str, Result]:
        """Run until all of these are done; other requests of the engine go on beside them."""
        places = {request.id: place for place, request in enumerate(requests)}
        outputs: dict[str, list[Result]] = {request.id: [] for request in requests}
        results: dict[str, Result] = {}
        while len(results) < len(requests):
            for delta in self.engine.step():
                place = places[delta.request_id]
                params = requests[place].params
                if delta.result is not None:
                    outputs[delta.request_id].append(_sound(delta))
                    if not self.engine.is_running(delta.request_id):
                        results[delta.request_id] = combine(outputs[delta.request_id], params.n)
                result = results.get(delta.request_id)
                if params.num_choices == 1:
                    listen(place, delta.text, result is not None)
                elif result is not None:
                    listen(place, numbered(result), True)
        return results

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


def numbered(result: Result) -> str:
    """The text of a result that has alternatives, each under its number."""
    texts = [output.text for output in (result, *result.alternatives)]
    return "\n\n".join(f"({number}) {text}" for number, text in enumerate(texts, 1))


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


def _sound(delta: Delta) -> Result:
    """The result that a delta brings; raises where it says that no token could be chosen."""
    assert delta.result is not None, "only last deltas are asked"
    if delta.result.error is not None:
        raise delta.result.error
    return delta.result


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
