"""Memory of the cuda target: running out is told and survived, budgets hold, nothing grows.

The parts that need no GPU run in Triton's interpreter, too, where running out is acted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from cuda_container import CTX, VOCAB, Kind, MemoryContainer  # noqa: E402
from cuda_engine import (  # noqa: E402
    DEVICE,
    engine_of,
    greedy,
    needs_gpu,
    prompt,
    session_of,
    several,
    small_kind,
)

from qeff.backends.cuda.session import open_session, opening  # noqa: E402
from qeff.backends.cuda.session.graphs import Graphs  # noqa: E402
from qeff.backends.cuda.session.reading import read_program  # noqa: E402
from qeff.core.errors import ResourceError  # noqa: E402
from qeff.generate import Engine  # noqa: E402
from qeff.runtime.session import CHOICE, GREEDY, Batch, Span  # noqa: E402

pytestmark = pytest.mark.cuda
GIB = 1 << 30
STEP_HINT = "lower --step-tokens, --prompt-len or --full-batch-size, or raise --vram-budget"


def decode(place: int, token: int = 5) -> Batch:
    return Batch(np.array([token]), np.array([place]), (Span(0, 1, (0, 1)),), np.array([0]))


def full_step(count: int = 4) -> Batch:
    """As many tokens as there may be: all sequences, whole contexts, every row asked for."""
    spans = tuple(Span(i * CTX, (i + 1) * CTX, (2 * i, 2 * i + 1)) for i in range(count))
    tokens = np.random.default_rng(1).integers(0, VOCAB, count * CTX)
    return Batch(tokens, np.tile(np.arange(CTX), count), spans, np.arange(count * CTX))


class Failing:
    """Runs out of memory in some of an executor's runs, counted from 0."""

    def __init__(self, executor, *times: int) -> None:
        self._run, self._times, self.count = executor.run, times, 0

    def __call__(self, *args: object):
        self.count += 1
        if self.count - 1 in self._times:
            raise torch.OutOfMemoryError("acted")
        return self._run(*args)


def act(session, monkeypatch: pytest.MonkeyPatch, *times: int) -> Failing:
    failing = Failing(session._executor, *times)
    monkeypatch.setattr(session._executor, "run", failing)
    return failing


def test_a_step_that_does_not_fit_at_first(tmp_path: Path, monkeypatch) -> None:
    """The memory of captured steps is given back, and it is run once more."""
    session = session_of(tmp_path)
    session.reserve(2)
    expected = session.step(decode(0)).logits
    failing = act(session, monkeypatch, 0)
    session._graphs.clear()
    np.testing.assert_array_equal(session.step(decode(0)).logits, expected)
    assert failing.count >= 2
    session.close()


def test_a_step_that_does_not_fit(tmp_path: Path, monkeypatch) -> None:
    session = session_of(tmp_path)
    session.reserve(2)
    expected = session.step(decode(0)).logits
    session._graphs.clear()
    act(session, monkeypatch, 0, 1)
    with pytest.raises(ResourceError, match="does not hold a step of 1 tokens") as caught:
        session.step(decode(0))
    assert caught.value.hint == STEP_HINT
    np.testing.assert_array_equal(session.step(decode(0)).logits, expected)
    session.close()


def test_a_capture_that_does_not_fit(tmp_path: Path) -> None:
    """What the step made is there already; its tokens are not chosen a second time."""

    def record(pool: object, step: object) -> object:
        raise torch.OutOfMemoryError("acted")

    session = session_of(tmp_path)
    session.reserve(2)
    choices = np.array([GREEDY], CHOICE)
    expected = session.step(replace(decode(0), choices=choices)).tokens
    session._graphs = Graphs(session._device, 0, record)
    begun = session.begin(replace(decode(0), choices=choices))
    following = session.begin(replace(decode(1, -1), choices=choices))
    assert begun.result().tokens == expected
    fed = session.step(replace(decode(1, int(expected[0])), choices=choices)).tokens
    assert following.result().tokens == fed
    session.close()


def test_the_engine_goes_on_after_a_step_that_did_not_fit(tmp_path: Path, monkeypatch) -> None:
    params = greedy(several(20, 2))
    with engine_of(tmp_path, reuse_prefixes=False) as engine:
        expected = [r.token_ids for r in engine.generate([prompt(4), prompt(5, 1)], params)]
        num_free = engine.stats.num_free_blocks
        engine.session._graphs.clear()
        act(engine.session, monkeypatch, 0, 1)
        with pytest.raises(ResourceError, match="GPU's memory does not hold"):
            engine.generate([prompt(4), prompt(5, 1)], params)
        assert not engine.has_work and engine.stats.num_free_blocks == num_free
        found = [r.token_ids for r in engine.generate([prompt(4), prompt(5, 1)], params)]
    assert found == expected


@needs_gpu
def test_a_cache_that_does_not_fit(tmp_path: Path) -> None:
    session = session_of(tmp_path)
    block = sum(cache.bytes_per_block for cache in session.caches)
    _, total = torch.cuda.mem_get_info()
    with pytest.raises(ResourceError, match="does not hold a cache of") as caught:
        session.reserve(2 * total // block)
    assert "lower --full-batch-size or --ctx-len" in str(caught.value)
    session.reserve(2)
    assert np.isfinite(session.step(decode(0)).logits).all()
    session.close()


@contextmanager
def filled() -> Iterator[None]:
    """As much memory as the process holds is all it may have, and all of it is taken."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / total)
    taken, size = [], 64 << 20
    try:
        while size >= 512:
            try:
                taken.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            except torch.OutOfMemoryError:
                size //= 2
        yield
    finally:
        taken.clear()
        torch.cuda.set_per_process_memory_fraction(1.0)


@needs_gpu
def test_a_step_without_any_memory(tmp_path: Path) -> None:
    """The allocator itself says no; when there is memory again, the session serves."""
    with_memory = session_of(tmp_path)
    with_memory.reserve(8)
    expected = with_memory.step(full_step()).logits
    with_memory.close()
    session = session_of(tmp_path)
    session.reserve(8)
    with filled(), pytest.raises(ResourceError, match="does not hold a step of 512 tokens"):
        session.step(full_step())
    np.testing.assert_array_equal(session.step(full_step()).logits, expected)
    session.close()


# ---- budgets -----------------------------------------------------------------------------------


def opened(folder: Path, budget: int | None, kind: Kind | None = None):
    container = MemoryContainer(kind or small_kind(), folder, max_batch=4)
    return open_session(container, None, device=DEVICE, vram_budget=budget)


def least_of(folder: Path, kind: Kind | None = None) -> int:
    """The smallest budget that works, as a refusal tells it."""
    with pytest.raises(ResourceError, match="of GPU memory do not hold the weights") as caught:
        opened(folder, 1 << 20, kind)
    found = re.search(r"a --vram-budget of at least ([0-9.]+)", str(caught.value))
    assert found is not None
    return int(float(found[1]) * GIB)


def test_too_small_a_budget_names_one_that_works(tmp_path: Path) -> None:
    least = least_of(tmp_path)
    session = opened(tmp_path, least)
    assert session.caps.max_blocks is not None and session.caps.max_blocks >= CTX // 64
    session.close()
    with pytest.raises(ResourceError):
        opened(tmp_path, least // 2)


@pytest.mark.parametrize(
    "kind",
    [
        Kind(),
        Kind(form="mxfp4", compute="bf16", kv="mxint8", is_tied=True),
        Kind(form="fp8", compute="bf16", kv="fp8", biases=True),
        Kind(form="bf16", compute="bf16", kv="bf16", head_norms=True, experts=4),
    ],
    ids=["f32", "mxfp4", "fp8", "experts"],
)
def test_sizes_are_known_before_anything_is_loaded(kind: Kind, tmp_path: Path) -> None:
    container = MemoryContainer(kind, tmp_path)
    opened = read_program(container)
    settings = {"deterministic": False}
    meta, sizes = opening.load(container, opened, torch.device("meta"), **settings)
    real, loaded = opening.load(container, opened, torch.device(DEVICE), **settings)
    assert sizes == loaded and sum(sizes) > 0
    options = container.manifest.options
    assert opening.Room.of(meta, options) == opening.Room.of(real, options)


@needs_gpu
@pytest.mark.parametrize("extra", [0.0, 0.5, 4.0])
def test_a_budget_is_a_ceiling(extra: float, tmp_path: Path) -> None:
    """With all cache blocks that there may be, every step runs, and nothing more is held."""
    budget = least_of(tmp_path) + int(extra * GIB)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_reserved()  # of libraries; it counts, too
    session = opened(tmp_path, budget)
    assert session.caps.max_blocks is not None
    session.reserve(session.caps.max_blocks)
    if session.caps.max_blocks >= 8:
        for _ in range(3):  # run, captured, played back
            session.step(full_step())
    for place in range(CTX):
        session.step(decode(place))
    assert torch.cuda.max_memory_reserved() <= budget
    # All but the weights and the room for steps is cache.
    cache = sum(layer.bytes_per_block for layer in session.caches) * session.caps.max_blocks
    options = MemoryContainer(small_kind(), tmp_path, max_batch=4).manifest.options
    room = opening.Room.of(session._executor, options).step_bytes
    assert cache >= budget - before - room - (64 << 20)
    session.close()
    assert torch.cuda.get_per_process_memory_fraction() == 1.0


@needs_gpu
def test_a_session_that_was_refused_leaves_no_ceiling(tmp_path: Path) -> None:
    least_of(tmp_path)
    assert torch.cuda.get_per_process_memory_fraction() == 1.0


# ---- growth ------------------------------------------------------------------------------------


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@needs_gpu
@pytest.mark.parametrize("deterministic", [False, True])
def test_nothing_grows_in_ten_thousand_steps(deterministic: bool, tmp_path: Path) -> None:
    session = session_of(tmp_path, deterministic=deterministic)
    with Engine(session, eos_ids=(), reuse_prefixes=False) as engine:
        params = [greedy(100), greedy(100, temperature=0.8, top_p=0.9), greedy(100, logprobs=1)]

        def run(num_rounds: int) -> None:
            for i in range(num_rounds):  # every round of nine has other sizes and settings
                lens = [9 + (i + place) % 9 for place in range(3)]
                engine.generate([prompt(20, i)], replace(params[i % 3], seed=i))
                engine.generate([prompt(length, i) for length in lens], params[0])

        run(4 * 9)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), resident()
        num_steps = engine.stats.num_steps
        while engine.stats.num_steps < num_steps + 10_000:
            run(9)
        torch.cuda.synchronize()
        after = torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), resident()
    assert after[0] <= before[0] and after[1] <= before[1]
    assert after[2] - before[2] < 16 << 20
