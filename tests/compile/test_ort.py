"""The whole way for ONNX Runtime: graph to container to steps, against the same model in numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from dialect import Size, build_random, eager

from qeff.compile import compile_graph
from qeff.container import Container
from qeff.core.errors import CompileError, RequestError, ResourceError
from qeff.core.options import CompileOptions
from qeff.runtime import Batch, Session, Span, open_session

# The largest difference of a logit, as a part of the largest logit.
TOLERANCE = {"fp32": 2e-6, "fp16": 2e-2, "int8": 5e-2, "int4": 0.6}
CASES = [
    ("fp32", "auto"),
    ("fp16", "auto"),
    ("int8", "auto"),
    ("int4", "auto"),
    ("fp32", "fp16"),
    ("int8", "fp16"),
]


class Driver:
    """Feeds sequences to a session and compares every row with the numpy model."""

    def __init__(self, session: Session, size: Size, weights: dict[str, np.ndarray]) -> None:
        self.session, self.size, self.weights = session, size, weights
        self.tokens: dict[int, list[int]] = {}  # by slot

    def step(self, *parts: tuple[int, list[int]]) -> float:
        """Append tokens to the sequences in these slots; returns the largest relative error."""
        spans, flat, positions, wanted = [], [], [], []
        for slot, fresh in parts:
            known = self.tokens.setdefault(slot, [])
            spans.append(Span(len(flat), len(flat) + len(fresh), (slot,)))
            flat += fresh
            positions += range(len(known), len(known) + len(fresh))
            known += fresh
            wanted.append(eager(self.size, self.weights, known)[-len(fresh) :])
        expected = np.concatenate(wanted)
        order = np.random.default_rng(len(flat)).permutation(len(flat))
        batch = Batch(np.array(flat), np.array(positions), tuple(spans), order)
        found = self.session.step(batch).logits
        assert found.dtype == np.float32
        return float(np.abs(found - expected[order]).max() / np.abs(expected).max())


def compiled(folder: Path, size: Size, **options) -> tuple[Container, dict[str, np.ndarray]]:
    graph, weights = build_random(size)
    chosen = CompileOptions(target="ort", ctx_len=24, prefill_seq_len=8, **options)
    compile_graph(graph, chosen, text_files={}, provenance={}, out=folder / "c")  # type: ignore[arg-type]
    return Container.open(folder / "c", verify="full"), weights


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize(("precision", "kv"), CASES)
def test_every_way_of_stepping_matches_numpy(
    tmp_path: Path, precision: str, kv: str, continuous: bool
) -> None:
    size = Size(continuous=continuous, vocab=128)
    rows = {"full_batch_size": 4} if continuous else {"batch_size": 4}
    container, weights = compiled(tmp_path, size, precision=precision, kv_precision=kv, **rows)
    session = open_session(container, threads=1)
    session.reserve(4)
    driver = Driver(session, size, weights)
    errors = [
        driver.step((2, [1, 2, 3, 4, 5]), (0, [7, 8, 9])),  # ragged prompts, slots out of order
        driver.step((1, [5, 4, 3]), (2, [6])),  # prefill beside decode
        driver.step((2, [7]), (0, [1])),  # slot 1 idles in between
        driver.step((0, [2, 3, 4]), (1, [9, 9, 9]), (2, [1])),  # two pieces of one length
        driver.step((3, list(range(24)))),  # a slot filled to the last row
        driver.step((1, [11]), (2, [12]), (0, [13])),
    ]
    limit = max(TOLERANCE[precision], TOLERANCE[kv if kv != "auto" else precision])
    assert max(errors) < limit, errors
    session.close()


def test_an_idle_slot_keeps_its_cache_at_the_end_of_the_context(tmp_path: Path) -> None:
    """Padding rows of a long piece beside a nearly full slot must not wrap onto live rows."""
    size = Size()
    container, weights = compiled(tmp_path, size, batch_size=3)
    session = open_session(container, threads=1)
    session.reserve(3)
    driver = Driver(session, size, weights)
    driver.step((0, list(range(10))), (1, list(range(23))), (2, list(range(10))))
    assert driver.step((0, [1]), (2, [2])) < TOLERANCE["fp32"]  # slot 1 idles
    assert driver.step((1, [3])) < TOLERANCE["fp32"]


def test_rows_nobody_asks_for_are_not_returned(tmp_path: Path) -> None:
    size = Size()
    container, weights = compiled(tmp_path, size)
    session = open_session(container, threads=1)
    session.reserve(1)
    tokens = np.arange(6)
    span = (Span(0, 6, (0,)),)
    assert session.step(Batch(tokens, tokens, span, np.array([], int))).logits.shape == (0, 96)
    session.reserve(1)
    found = session.step(Batch(tokens, tokens, span, np.array([5, 5, 0]))).logits
    expected = eager(size, weights, list(range(6)))[[5, 5, 0]]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_copied_slots_hold_the_same_past(tmp_path: Path) -> None:
    size = Size(continuous=True)
    container, weights = compiled(tmp_path, size, full_batch_size=2, kv_cache_batch_size=3)
    session = open_session(container, threads=1)
    assert session.caps.max_blocks == 3 and session.caps.max_sequences == 2
    session.reserve(3)
    driver = Driver(session, size, weights)
    driver.step((0, [1, 2, 3]))
    session.copy_blocks([(0, 2), (2, 1)])
    driver.tokens[1] = [1, 2, 3]
    assert driver.step((1, [4]), (0, [5])) < TOLERANCE["fp32"]


def test_what_this_target_cannot_do_is_said(tmp_path: Path) -> None:
    container, _ = compiled(tmp_path, Size())
    session = open_session(container, threads=1)
    assert session.caps.block_len == session.caps.ctx_len == 24
    assert not session.caps.supports_trees
    with pytest.raises(ResourceError, match="cache slots"):
        session.reserve(2)
    one = np.zeros(1, np.int64)
    with pytest.raises(RequestError, match="trees"):
        session.step(Batch(one, one, (Span(0, 1, (0,)),), one, parents=one))
    with pytest.raises(CompileError, match="fp32 cache"):
        compiled(tmp_path / "b", Size(), precision="fp16", kv_precision="fp32")


def test_formats_without_a_kernel_run_in_the_nearest_one(tmp_path: Path, caplog) -> None:
    container, _ = compiled(tmp_path, Size(), precision="mxfp8", kv_precision="mxint8")
    assert container.manifest.precision["asked"] == "mxfp8"
    assert container.manifest.precision["linear"] == "int8"
    assert container.manifest.precision["kv"] == "fp16"
    assert "no mxfp8" in caplog.text and "no mxint8" in caplog.text


def test_weights_are_stored_once_and_in_fewer_bytes(tmp_path: Path) -> None:
    sizes = {}
    for precision in ("fp32", "fp16", "int8", "int4"):
        container, _ = compiled(tmp_path / precision, Size(vocab=512), precision=precision)
        sizes[precision] = container.manifest.files["weights.safetensors"].size
        if precision == "fp32":  # the table is the head too
            assert "model.embed_tokens.weight" in container.weight_names
            shapes = [container.weight(name).shape for name in container.weight_names]
            assert shapes.count((512, 64)) == 1 and (64, 512) not in shapes
    assert sizes["fp32"] > 1.2 * sizes["fp16"] > sizes["int8"] > sizes["int4"]
    report = container.describe()["certificate"]["quantisation"]
    assert 0.05 < report["linear"]["relative_rms_error"] < 0.12
    assert report["head"]["relative_rms_error"] < 0.01
    assert report["linear"]["tensors"] == 10 and report["linear"]["worst_tensor"]
