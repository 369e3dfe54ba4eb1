"""How the CUDA engine sizes, keeps and plays back steps, and where their values lie."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from cuda_container import VOCAB, Kind, MemoryContainer  # noqa: E402

from qeff.backends.cuda import layout  # noqa: E402
from qeff.backends.cuda.session import attention, open_session, padding  # noqa: E402
from qeff.backends.cuda.session import graphs as graphs_module  # noqa: E402
from qeff.backends.cuda.session.graphs import Graphs, Key, Made, Mode  # noqa: E402
from qeff.backends.cuda.session.matrix import Matrix  # noqa: E402
from qeff.backends.cuda.session.padding import Extent, Padded, pad  # noqa: E402
from qeff.backends.cuda.session.slots import assign_slots  # noqa: E402
from qeff.backends.cuda.session.stages import LOGITS, Generic, Product  # noqa: E402
from qeff.backends.cuda.session.step_buffer import Sizes  # noqa: E402
from qeff.backends.cuda.session.table import look_up  # noqa: E402
from qeff.compile.panels.encoding import code_rows  # noqa: E402
from qeff.runtime.session import CHOICE, GREEDY, Batch, Span  # noqa: E402

CPU = torch.device("cpu")
MODE = Mode(chooses=True, draws=False, filters=False, shows=False)


def extent(tokens: int, spans: int, rows: int, longest: int = 100, **known: bool) -> Extent:
    return Extent(tokens, spans, rows, longest, **({"is_decode": False, "is_same": False} | known))


def padded(*args: Any, most_rows: int = 10**6, **known: Any):
    return pad(extent(*args, **known), 8192, most_rows)


def test_steps_are_padded_to_few_sizes() -> None:
    decode = {"is_decode": True, "is_same": True}
    assert padded(5, 5, 5, **decode) == Padded(8, 8, 8, 256, is_small=True)
    assert padded(500, 500, 500, 300, **decode) == Padded(512, 512, 512, 512, is_small=True)
    assert padded(40, 2, 2) == Padded(48, 48, 48, 256, is_small=True)
    # A prompt alone that fills its tiles has no padding; another gets a span for it.
    assert padded(4096, 1, 1, 4096) == Padded(4096, 1, 1, 4096, is_large=True)
    assert padded(4096, 1, 0, 4097) == Padded(4096, 1, 0, 8192, is_large=True)
    assert padded(1000, 1, 1, 1000) == Padded(1024, 2, 1, 1024, is_large=True)
    # A prompt beside decodes.
    assert padded(2048 + 90, 91, 91) == Padded(2176, 96, 96, 1024, is_large=True)
    # Every token is asked for: rows are tokens.
    assert padded(70, 1, 70, is_same=True) == Padded(128, 2, 128, 1024, is_large=True)
    # More decodes than the largest size keep a span each.
    assert padded(600, 600, 600, **decode) == Padded(640, 640, 640, 1024, is_large=True)


def test_steps_that_are_not_captured_are_not_padded() -> None:
    assert padded(70, 1, 70, is_same=True, most_rows=100) == Padded(70, 1, 70, 256)


def test_padding_fits_into_a_table_of_few_rows() -> None:
    found = pad(extent(1100, 600, 600, 40), 40, 10**6)
    assert found.reach == 64 and found.tokens - 1100 <= found.reach


class Recording:
    """Stands for a captured step: playing it back runs it again into the memory it left."""

    def __init__(self, step: Callable[[], Made], made: Made) -> None:
        self.step, self.made = step, made

    def replay(self) -> None:
        again = self.step()
        for kept, found in ((self.made.logits, again.logits), (self.made.tokens, again.tokens)):
            if kept is not None and found is not None:
                kept.copy_(found.clone())


def recorder(num_bytes: int = 0) -> Callable[..., Any]:
    def record(pool: Any, step: Callable[[], Made]) -> tuple[Recording, Made, int]:
        made = step()
        return Recording(step, made), made, num_bytes

    return record


def key(tokens: int) -> Key:
    return Key(Sizes(tokens, 1, 1, 4), 256, False, False, MODE)


def nothing(_: Key) -> Made:
    return Made(None, None)


def test_a_small_step_is_captured_at_once_and_a_large_one_when_it_comes_again() -> None:
    graphs = Graphs(CPU, 100, recorder(10))
    counts = []
    for _ in range(2):
        graphs.run_small(key(1), nothing)
        counts.append(graphs.num_captured)
    for _ in range(3):
        graphs.run_large(key(100), nothing)
        counts.append(graphs.num_captured)
    assert counts == [1, 1, 1, 2, 2]
    graphs.clear_large()
    graphs.run_small(key(1), nothing)
    assert graphs.num_captured == 2
    graphs.run_large(key(100), nothing)  # seen before
    assert graphs.num_captured == 3


def test_the_large_steps_used_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs_module, "MOST_LARGE", 2)
    graphs = Graphs(CPU, 100, recorder(10))
    for tokens in (1, 2, 1, 2, 1, 3, 3):  # 2 was used longest ago when 3 is captured
        graphs.run_large(key(tokens), nothing)
    assert graphs.num_captured == 3
    graphs.run_large(key(1), nothing)
    assert graphs.num_captured == 3
    graphs.run_large(key(2), nothing)
    assert graphs.num_captured == 4


def test_memory_of_large_steps_is_bounded() -> None:
    graphs = Graphs(CPU, 25, recorder(10))
    for tokens in (1, 1, 2, 2, 3, 3):
        graphs.run_large(key(tokens), nothing)
    assert graphs.num_captured == 3 and not graphs._large.graphs
    graphs = Graphs(CPU, 5, recorder(10))
    for _ in range(4):
        graphs.run_large(key(1), nothing)
    assert graphs.num_captured == 1, "one that does not fit alone is not tried again"

    def full(pool: Any, step: Callable[[], Made]) -> Any:
        raise torch.OutOfMemoryError

    graphs = Graphs(CPU, 5, full)
    runs = []
    for _ in range(3):
        graphs.run_large(key(1), lambda k: runs.append(k) or Made(None, None))
    assert len(runs) == 3


@pytest.mark.parametrize("form", ["q8_0", "q4_0", "mxfp8", "mxfp6", "mxfp4"])
def test_rows_of_a_packed_table(form: str) -> None:
    draws = np.random.default_rng(0)
    for columns in (96, 320):
        values = draws.standard_normal((10, columns)).astype(np.float32)
        coded, _ = code_rows(values, form)
        codes, scales = map(np.array, layout.pack_rows(form, coded.codes, coded.inner[0]))
        expected = layout.unpack_rows(form, codes, scales, columns)
        matrix = Matrix(form, (10, columns), torch.from_numpy(codes), torch.from_numpy(scales))
        index, chosen = torch.tensor([2, -2, 8]), torch.tensor([1, 3])
        out = torch.empty((3, columns))
        look_up(matrix, index, 1, out, chosen)
        np.testing.assert_array_equal(out.numpy(), expected[[3, 4, 9]])
        assert index.tolist() == [2, 3, 8]


def product(reads: tuple[int, ...], writes: tuple[int, ...]) -> Product:
    return Product(Matrix("f32", (1, 1), torch.empty(1, 1)), reads, writes, (1,) * len(writes))


def view(read: int, write: int) -> Generic:
    return Generic(lambda call: [], {}, [read], (read,), (write,))


def random_stages(seed: int) -> tuple[list[Any], int]:
    draws = np.random.default_rng(seed)
    stages: list[Any] = [product((), (0,))]
    last = 0
    for _ in range(12):
        some = draws.integers(0, last + 1, 2)
        if draws.random() < 0.3:
            stages.append(view(int(some[0]), last + 1))
            last += 1
            continue
        reads = (int(some[0]),) if draws.random() < 0.3 else (int(some[0]), int(some[1]))
        count = 1 if len(reads) == 2 else int(draws.integers(1, 3))
        stages.append(product(reads, tuple(range(last + 1, last + 1 + count))))
        last += count
    return stages, last


@pytest.mark.parametrize("seed", range(60))
def test_no_value_is_written_over_before_its_last_use(seed: int) -> None:
    stages, logits = random_stages(seed)
    assign_slots(stages, logits)
    holds: dict[int | str, object] = {}  # what memory holds: the stage that wrote it last
    home: dict[
        int, tuple[int | str, object]
    ] = {}  # where a value lies, and what it has to find there
    for stage in stages:
        for index in stage.reads:
            place, wanted = home[index]
            assert holds[place] is wanted, f"value {index} is gone"
        if isinstance(stage, Generic):
            home[stage.writes[0]] = home[stage.reads[0]]
            continue
        place = f"slot {stage.slot}"
        if stage.is_in_place:
            place = home[stage.reads[1]][0]
        elif stage.slot in (None, LOGITS):
            place = id(stage)
        assert all(home[index][0] != place for index in stage.reads[:1]), "the input is overwritten"
        holds[place] = stage
        for index in stage.writes:
            home[index] = place, stage
    assert holds[home[logits][0]] is home[logits][1]


def test_slots_are_used_again() -> None:
    stages = [product((), (0,))]
    for at in range(0, 16, 2):
        stages += [product((at,), (at + 1,)), product((at + 1, at), (at + 2,))]
    assign_slots(stages, 99)
    assert all(stage.is_in_place for stage in stages[2::2])
    assert {stage.slot for stage in stages} == {0, 1, None}


def step_of(lens: tuple[int, ...], firsts: tuple[int, ...]) -> Batch:
    starts = np.concatenate([[0], np.cumsum(lens)])
    spans = tuple(
        Span(int(starts[i]), int(starts[i + 1]), (2 * i + 1, 2 * i)) for i in range(len(lens))
    )
    places = [np.arange(first, first + size) for size, first in zip(lens, firsts, strict=True)]
    tokens = np.random.default_rng(3).integers(0, VOCAB, sum(lens))
    return Batch(tokens, np.concatenate(places), spans, starts[1:] - 1)


def test_padded_and_played_back_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts, a prompt beside decodes, decodes: first run, captured, played back."""
    monkeypatch.setattr(padding, "SMALL", (1, 2))
    monkeypatch.setattr(padding, "MEDIUM_STEP", 4)
    monkeypatch.setattr(attention, "FEW_TOKENS", 2)
    container = MemoryContainer(Kind(layers=2), tmp_path)
    session, reference = open_session(container, None, device="cpu"), container.reference()
    session._graphs = Graphs(CPU, 100, recorder())
    for one in (session, reference):
        one.reserve(6)
    steps = [
        step_of((4,), (0,)),  # alone, no padding
        step_of((1, 2), (4, 0)),  # a decode and a prompt, a token of padding
        step_of((1, 2), (5, 2)),  # captured
        step_of((2, 1), (6, 4)),  # played back: what the spans are is not in the key
        step_of((1, 1, 1), (8, 5, 0)),  # decodes
    ]
    counts = []
    for step in steps:
        expected, found = reference.step(step).logits, session.step(step).logits
        np.testing.assert_allclose(found, expected, atol=1e-4)
        counts.append(session._graphs.num_captured)
    assert counts == [0, 0, 1, 1, 2]
    chosen = replace(step_of((1, 2), (9, 6)), choices=np.array([GREEDY, GREEDY], CHOICE))
    expected = reference.step(step_of((1, 2), (9, 6))).logits
    assert session.step(chosen).tokens.tolist() == expected.argmax(-1).tolist()


def test_large_steps_are_forgotten_when_their_memory_moves(tmp_path: Path) -> None:
    session = open_session(MemoryContainer(Kind(layers=1), tmp_path), None, device="cpu")
    place = session._executor.place
    small = place.take(0, 8, (8, 4), torch.float32)
    assert place.take(0, 8, (16, 4), torch.float32).data_ptr() != small.data_ptr()
    assert place.moves == 0  # what small steps had stays
    place.take(0, 4096, (4096, 4), torch.float32)
    place.take(0, 4096, (2048, 4), torch.float32)
    assert place.moves == 0
    place.take(0, 8192, (8192, 4), torch.float32)
    assert place.moves == 1
