"""Engines over small programs of the cuda target, on a GPU or in Triton's interpreter.

An interpreted step takes about half a second: ``several`` says how much of a test is done there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from cuda_container import VOCAB, Kind, MemoryContainer

from qeff.backends.cuda.session import open_session
from qeff.generate import Engine, Request, Result, SamplingParams
from qeff.generate.drafting import Drafting
from qeff.generate.speculation import SpeculationConfig

IS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if IS_GPU else "cpu"
needs_gpu = pytest.mark.skipif(not IS_GPU, reason="needs an NVIDIA GPU")


def several(on_gpu: int, interpreted: int) -> int:
    """A number of tokens or requests that the device manages in little time."""
    return on_gpu if IS_GPU else interpreted


def small_kind(**more: object) -> Kind:
    """Two layers and bf16 on a GPU; the least there is in the interpreter."""
    usual = {"form": "bf16", "compute": "bf16", "kv": "bf16"} if IS_GPU else {"layers": 1}
    return Kind(**{**usual, **more})


def session_of(folder: Path, kind: Kind | None = None, **settings: object):
    """A session with results that do not depend on what else is in a step."""
    folder.mkdir(exist_ok=True)
    container = MemoryContainer(kind or small_kind(), folder, max_batch=4)
    return open_session(container, None, device=DEVICE, **({"deterministic": True} | settings))


def engine_of(folder: Path, kind: Kind | None = None, **settings: object) -> Engine:
    """An engine of token ids, without words."""
    return Engine(session_of(folder, kind), eos_ids=(), **settings)


def drafting_of(name: str, engine_caps, folder: Path) -> Drafting:
    """Guesses of a kind, never given up; the draft model is the model itself."""
    config = SpeculationConfig(kind=name, is_adaptive=False, min_ngram=1, min_confidence=0.0)
    draft = session_of(folder) if name == "draft" else None
    return Drafting.start(config, engine_caps, draft=draft)


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(int(token) for token in np.random.default_rng(seed).integers(0, VOCAB, length))


def alone(engine: Engine, requests: Sequence[Request]) -> dict[str, Result]:
    """Each request by itself, one after the other."""
    return {request.id: engine.generate([request])[0] for request in requests}


def beside_each_other(engine: Engine, requests: Sequence[Request]) -> dict[str, Result]:
    """All requests in one engine, one more in every second step."""
    waiting, results, num_steps = list(requests), {}, 0
    while waiting or engine.has_work:
        if waiting and num_steps % 2 == 0:
            engine.add(waiting.pop(0))
        for delta in engine.step():
            if delta.result is not None:
                results[delta.request_id] = delta.result
        num_steps += 1
    return results


def same(found: Result, expected: Result) -> None:
    """Equal tokens; equal bits of their log-probabilities on a GPU, whose sums have one order."""
    assert found.token_ids == expected.token_ids
    if IS_GPU:
        assert found.logprobs == expected.logprobs


def greedy(max_tokens: int, **more: object) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, **more)
