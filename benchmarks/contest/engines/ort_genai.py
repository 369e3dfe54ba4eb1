"""onnxruntime-genai: its own generator and greedy search, on the processor.

Gives no logits of whole texts, so it has no part in the comparison of distributions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib import metadata

import numpy as np
import onnxruntime_genai as lib


def versions() -> dict[str, str]:
    """The package's version."""
    return {"onnxruntime-genai": metadata.version("onnxruntime-genai")}


class Engine:
    """A model folder of the package's own builder."""

    def __init__(self, model: str, threads: int, ctx_len: int, num_sequences: int) -> None:
        del ctx_len  # a generator is made for each run
        config = lib.Config(model)
        session = {"intra_op_num_threads": threads, "inter_op_num_threads": 1}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
        batching = {"static_batching": {"max_batch_size": num_sequences}}
        config.overlay(json.dumps({"engine": batching}))
        self._model = lib.Model(config)
        self._generator: lib.Generator | None = None

    def start(self, prompts: Sequence[Sequence[int]], num_new: int) -> list[int]:
        """Run whole prompts in one call."""
        length = len(prompts[0]) + num_new
        params = lib.GeneratorParams(self._model)
        params.set_search_options(
            do_sample=False, batch_size=len(prompts), min_length=length, max_length=length
        )
        self._generator = lib.Generator(self._model, params)
        self._generator.append_tokens(np.asarray(prompts, np.int32))
        return self.advance(())

    def advance(self, tokens: Sequence[int]) -> list[int]:
        """The generator knows the tokens that it gave."""
        del tokens
        assert self._generator is not None, "start comes first"
        self._generator.generate_next_token()
        return [int(token) for token in self._generator.get_next_tokens()]

    def serve(
        self, requests: Sequence[tuple[Sequence[int], int]], note: Callable[[int], None]
    ) -> None:
        """Run all requests through the package's own scheduler."""
        engine = lib.Engine(self._model)
        asked = []
        for prompt, num_new in requests:
            request = engine.create_request()
            turn = lib.TurnOptions(request)
            turn.set_do_sample(False)
            turn.set_min_generated_tokens(num_new)
            turn.set_max_generated_tokens(num_new)
            request.begin_turn(np.asarray(prompt, np.int32), turn)
            asked.append(request)
        buffer = engine.create_event_buffer(4 * len(requests))
        while engine.has_pending_requests():
            for event in engine.run(buffer):
                if int(event.flags) & int(lib.EngineEventFlags.FAILED):
                    raise RuntimeError(f"onnxruntime-genai gave up: {event.error_code}")
                if int(event.flags) & int(lib.EngineEventFlags.TOKEN):
                    note(asked.index(event.request))
