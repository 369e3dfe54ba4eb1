"""The whole engine on the cuda target: every request gives what it gives alone, and as on the cpu.

Sessions are deterministic, so tokens are compared, not only numbers. What takes few steps runs in
Triton's interpreter, too; the rest needs an NVIDIA GPU: ``pytest -m cuda``.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from cuda_container import VOCAB  # noqa: E402
from cuda_engine import (  # noqa: E402
    alone,
    beside_each_other,
    drafting_of,
    engine_of,
    greedy,
    needs_gpu,
    prompt,
    same,
    session_of,
    several,
    small_kind,
)

from qeff.apps.opening import Chunked  # noqa: E402
from qeff.generate import Constraint, Engine, FinishReason, Request, SamplingParams  # noqa: E402
from qeff.runtime.session import Batch, Span  # noqa: E402

pytestmark = pytest.mark.cuda
# How far the logits of whole models may be from the cpu's, root mean squares: docs/cuda.md.
PARITY = {"fp32": 1e-4} | dict.fromkeys(("int8", "int4", "mxfp8", "mxfp6", "mxfp4"), 0.1)
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "of": {"enum": ["sun", "earth"]}},
    "required": ["ok", "of"],
    "additionalProperties": False,
}


def test_requests_that_come_at_different_times(tmp_path: Path) -> None:
    count, length = several(6, 2), several(40, 2)
    requests = [
        Request(prompt(several(5 + 9 * i, 3 + i), i), greedy(length, logprobs=1), id=f"r{i}")
        for i in range(count)
    ]
    with engine_of(tmp_path, reuse_prefixes=False) as engine:
        expected = alone(engine, requests)
        found = beside_each_other(engine, requests)
    for name, result in found.items():
        same(result, expected[name])


def test_a_prompt_in_chunks(tmp_path: Path) -> None:
    with engine_of(tmp_path / "whole") as engine:
        (expected,) = engine.generate([prompt(3)], greedy(3))
    session = session_of(tmp_path / "chunks")
    assert session.caps.overlaps
    with Engine(Chunked(session, 2), eos_ids=()) as engine:
        (found,) = engine.generate([prompt(3)], greedy(3))
    same(found, expected)


@needs_gpu
def test_a_prefix_that_is_there_already(tmp_path: Path) -> None:
    shared = prompt(70)
    requests = [
        Request(shared + prompt(4 + i, i + 1), greedy(24, logprobs=1), id=f"r{i}") for i in range(4)
    ]
    with engine_of(tmp_path / "plain", reuse_prefixes=False) as engine:
        expected = alone(engine, requests)
        assert engine.stats.num_reused_tokens == 0
    with engine_of(tmp_path / "reusing") as engine:
        found = beside_each_other(engine, requests)
        assert engine.stats.num_reused_tokens >= 2 * 64
    for name, result in found.items():
        same(result, expected[name])


@needs_gpu
def test_sequences_that_push_one_another_out(tmp_path: Path) -> None:
    requests = [Request(prompt(50, i), greedy(60, logprobs=1), id=f"r{i}") for i in range(4)]
    with engine_of(tmp_path, reuse_prefixes=False) as engine:
        expected = alone(engine, requests)
    with engine_of(tmp_path, num_blocks=5, reuse_prefixes=False) as engine:
        found = beside_each_other(engine, requests)
        assert engine.stats.num_preemptions > 0 and engine.stats.num_free_blocks == 5
    for name, result in found.items():
        same(result, expected[name])


def test_a_request_that_is_cancelled(tmp_path: Path) -> None:
    length = several(30, 2)
    requests = [Request(prompt(4, i), greedy(length), id=f"r{i}") for i in range(2)]
    with engine_of(tmp_path, reuse_prefixes=False) as engine:
        expected = engine.generate([requests[0]])[0]
        for request in requests:
            engine.add(request)
        engine.step()
        num_blocks = engine.stats.num_free_blocks
        result = engine.cancel("r1")
        assert result is not None and result.finish is FinishReason.CANCELLED
        assert engine.stats.num_free_blocks > num_blocks
        found = [delta for _ in range(length + 1) for delta in engine.step()]
        assert found[-1].result is not None and not engine.has_work
        assert found[-1].result.token_ids == expected.token_ids


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("prompt_lookup"),
        pytest.param("lookahead", marks=needs_gpu),
        pytest.param("draft", marks=needs_gpu),
        pytest.param("heads"),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, pytest.param(0.8, marks=needs_gpu)])
def test_speculation(kind: str, temperature: float, tmp_path: Path) -> None:
    length = several(40, 4)
    # A tree's sums have another order: in f32 that changes no token here.
    exact = {"form": "f32", "compute": "f32", "kv": "f32"} if kind == "lookahead" else {}
    model = small_kind(guessing=2 if kind == "heads" else 0, **exact)
    requests = [
        Request(prompt(6, i) * 2, greedy(length, temperature=temperature, seed=i), id=f"r{i}")
        for i in range(several(3, 1))
    ]
    with engine_of(tmp_path / "plain", model) as engine:
        expected = alone(engine, requests)
    session = session_of(tmp_path / "guessing", model)
    drafting = drafting_of(kind, session.caps, tmp_path / "draft")
    with Engine(session, eos_ids=(), drafting=drafting) as engine:
        found = beside_each_other(engine, requests)
        stats = engine.stats.speculation
    assert stats is not None and stats.num_drafted > 0
    assert kind != "draft" or stats.num_accepted > 0
    assert {name: r.token_ids for name, r in found.items()} == {
        name: r.token_ids for name, r in expected.items()
    }


def test_seeds(tmp_path: Path) -> None:
    length = several(32, 2)
    with engine_of(tmp_path, reuse_prefixes=False) as engine:
        runs = {
            name: engine.generate(
                [prompt(3)], SamplingParams(max_tokens=length, temperature=1.5, seed=seed)
            )[0].token_ids
            for name, seed in (("first", 3), ("again", 3), ("other", 4))
        }
    assert runs["first"] == runs["again"] != runs["other"]


@needs_gpu
@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.9, "n": 2},
        {"temperature": 0.9, "n": 1, "best_of": 3},
        {"beam_width": 3, "n": 2},
        {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
        {"repetition_penalty": 1.2, "presence_penalty": 0.5, "temperature": 0.7},
        {"logprobs": 3, "prompt_logprobs": 1},
    ],
    ids=lambda settings: " ".join(settings),
)
def test_outputs_of_all_kinds(settings: dict[str, float], tmp_path: Path) -> None:
    requests = [
        Request(prompt(9, i), SamplingParams(max_tokens=20, seed=i, **settings), id=f"r{i}")
        for i in range(3)
    ]
    with engine_of(tmp_path, reuse_prefixes=False) as engine:
        expected = alone(engine, requests)
        found = engine.generate(requests)
    for request, result in zip(requests, found, strict=True):
        same(result, expected[request.id])
        pairs = zip(result.alternatives, expected[request.id].alternatives, strict=True)
        assert all(one.token_ids == other.token_ids for one, other in pairs)
        assert 1 + len(result.alternatives) == settings.get("n", 1)
        assert result.prompt_logprobs == expected[request.id].prompt_logprobs


def test_log_probabilities(tmp_path: Path) -> None:
    """They are those of the logits, whichever rows of a step they are asked for."""
    params = greedy(several(12, 2), logprobs=VOCAB)
    with engine_of(tmp_path) as engine:
        (result,) = engine.generate([prompt(4)], params)
    assert result.logprobs is not None
    for choice in result.logprobs:
        scores = dict(choice.top)
        assert len(scores) == VOCAB and choice.token == max(scores, key=scores.__getitem__)
        assert np.exp(list(scores.values())).sum() == pytest.approx(1, abs=1e-4)


# ---- whole models ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model of the tests of whole commands, with its tokenizer."""
    pytest.importorskip("transformers")
    file = Path(__file__).parents[1] / "apps" / "conftest.py"
    spec = importlib.util.spec_from_file_location("apps_conftest", file)
    assert spec is not None and spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    return maker.make_model(tmp_path_factory.mktemp("models") / "tiny-llama")


def built(llama: Path, home: Path, monkeypatch: pytest.MonkeyPatch, **options: object):
    from qeff.apps.pipeline import build
    from qeff.container import Container
    from qeff.core.options import CompileOptions, ExportOptions

    monkeypatch.setenv("QEFF_HOME", str(home))
    chosen = CompileOptions(ctx_len=128, full_batch_size=3, **options)
    return Container.open(build(llama, ExportOptions(continuous_batching=True), chosen))


def logits_of(session, steps: list[tuple[int, ...]]) -> np.ndarray:
    """The logits of all tokens of a sequence that is run in these steps."""
    session.reserve(-(-128 // session.caps.block_len))
    blocks, done, found = tuple(range(-(-128 // session.caps.block_len))), 0, []
    for tokens in steps:
        places = np.arange(len(tokens))
        span = Span(0, len(tokens), blocks)
        batch = Batch(np.array(tokens), done + places, (span,), places)
        found.append(session.step(batch).logits)
        done += len(tokens)
    session.close()
    return np.concatenate(found)


@pytest.mark.parametrize(
    "precision",
    [pytest.param(name, marks=[] if name == "fp32" else needs_gpu) for name in PARITY],
)
def test_a_whole_model_as_on_the_cpu(
    precision: str, llama: Path, tmp_path_factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qeff import _native
    from qeff.runtime import open_session

    if not (Path(_native.__file__).parent / "libqeff.so").is_file():
        pytest.skip("the native library is not built")
    home = tmp_path_factory.getbasetemp() / "cuda-engine-home"
    # Where the two lowerings would choose formats of their own, they are told.
    overrides = {} if precision == "fp32" else {"precision_overrides": (("*", precision),)}
    steps = [prompt(several(40, 5)), *((t,) for t in prompt(several(8, 1), 1)), prompt(3, 2)]
    found = {}
    for target in ("cpu", "cuda"):
        container = built(llama, home, monkeypatch, target=target, precision=precision, **overrides)
        found[target] = logits_of(open_session(container), steps)
    error = np.square(found["cuda"] - found["cpu"]).mean() / np.square(found["cpu"]).mean()
    assert error**0.5 <= PARITY[precision], f"off by {error**0.5:.2g}"


@needs_gpu
def test_json_by_a_schema(llama: Path, tmp_path_factory, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llguidance")
    from qeff.generate import Text
    from qeff.runtime import open_session

    home = tmp_path_factory.getbasetemp() / "cuda-engine-home"
    container = built(llama, home, monkeypatch, target="cuda", precision="bf16")
    constraint = Constraint.json_schema(SCHEMA)
    with Engine(
        open_session(container, deterministic=True),
        Text.from_container(container),
        reuse_prefixes=False,
    ) as engine:
        requests = [
            Request(
                tuple(engine.text.encode(words)),
                SamplingParams(max_tokens=60, seed=i, temperature=0.5 * i),
                id=f"r{i}",
                constraint=constraint,
            )
            for i, words in enumerate(("once upon", "my name is", "the flat earth"))
        ]
        expected = alone(engine, requests)
        found = beside_each_other(engine, requests)
    for name, result in found.items():
        same(result, expected[name])
        if result.finish is not FinishReason.LENGTH:
            assert set(json.loads(result.text)) == {"ok", "of"}
