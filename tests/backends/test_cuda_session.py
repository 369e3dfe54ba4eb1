"""Whole programs on the CUDA engine, its kernels interpreted, against the reference session."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from cuda_container import CTX, VOCAB, Kind, MemoryContainer  # noqa: E402

from qeff.backends.cuda import layout  # noqa: E402
from qeff.backends.cuda.session import open_session  # noqa: E402
from qeff.backends.cuda.session.matrix import Matrix  # noqa: E402
from qeff.backends.cuda.session.stages import LOGITS, Attend, Embed, Generic, Product  # noqa: E402
from qeff.core.errors import RequestError, ResourceError  # noqa: E402
from qeff.runtime.session import CHOICE, GREEDY, NO_CHOICE, Batch, Span  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TIGHT, WIDE = 2e-5, 0.06  # of the largest logit


def opened(kind: Kind, folder: Path, **settings: object):
    container = MemoryContainer(kind, folder)
    session = open_session(container, None, device=DEVICE, **settings)
    reference = container.reference()
    for one in (session, reference):
        one.reserve(6)
    return session, reference


def prompts(*lens: int, rows: str = "last") -> Batch:
    """A first step: sequences of these lengths, in blocks that are not in order."""
    draws = np.random.default_rng(sum(lens))
    tokens = draws.integers(0, VOCAB, sum(lens))
    starts = np.concatenate([[0], np.cumsum(lens)])
    spans = tuple(
        Span(int(starts[i]), int(starts[i + 1]), (4 - 2 * i, 5 - 2 * i)) for i in range(len(lens))
    )
    positions = np.concatenate([np.arange(n) for n in lens])
    asked = starts[1:] - 1 if rows == "last" else np.arange(sum(lens))
    return Batch(tokens, positions, spans, asked)


def decodes(*places: int, tokens: np.ndarray | None = None) -> Batch:
    """One token for each sequence, at these positions."""
    tokens = np.arange(len(places)) + 7 if tokens is None else tokens
    spans = tuple(Span(i, i + 1, (4 - 2 * i, 5 - 2 * i)) for i in range(len(places)))
    return Batch(np.asarray(tokens), np.array(places), spans, np.arange(len(places)))


def compare(session, reference, batch: Batch, limit: float) -> None:
    expected, found = reference.step(batch).logits, session.step(batch).logits
    assert found.shape == expected.shape and found.dtype == np.float32
    worst = np.abs(found - expected).max() / np.abs(expected).max()
    assert worst <= limit, f"off by {worst:.2g}"


@pytest.mark.parametrize(
    "kind",
    [
        Kind(),
        Kind(head_norms=True, is_tied=True, window=3),
        Kind(biases=True, norm="layer", softcap=5.0, activation="gelu_tanh"),
    ],
    ids=["usual", "head norms", "biases"],
)
def test_a_model_in_float32(kind: Kind, tmp_path: Path) -> None:
    session, reference = opened(kind, tmp_path)
    compare(session, reference, prompts(3, 2), TIGHT)
    compare(session, reference, decodes(3, 2), TIGHT)


def numbers(matrix: Matrix) -> np.ndarray:
    """A matrix on the device, as floats."""
    codes, scales = matrix.codes.cpu(), matrix.scales
    if matrix.is_plain or matrix.format == "fp8":
        floats = codes.float().numpy()
        return floats if scales is None else floats * scales.cpu().numpy()[:, None]
    assert scales is not None
    return layout.unpack_rows(matrix.format, codes.numpy(), scales.cpu().numpy(), matrix.shape[1])


@pytest.mark.parametrize("form", ["bf16", "q8_0", "q4_0", "mxfp8", "mxfp6", "mxfp4", "fp8"])
def test_every_format_is_loaded(form: str, tmp_path: Path) -> None:
    container = MemoryContainer(Kind(form=form, compute="bf16", kv="bf16", layers=1), tmp_path)
    session = open_session(container, None, device=DEVICE)
    stages = session._executor.stages(same_rows=True)
    floats = [value for value in container.floats.values() if value.ndim == 2]
    table, q, k, v, o, gate, up, down, head = floats
    found = [numbers(stage.table) for stage in stages if isinstance(stage, Embed)]
    found += [numbers(stage.matrix) for stage in stages if isinstance(stage, Product)]
    expected = [table, np.concatenate([q, k, v]), o, np.concatenate([gate, up]), down, head]
    for matrix, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(matrix, wanted)


@pytest.mark.parametrize(
    ("form", "kv"), [("bf16", "bf16"), ("fp8", "fp8"), ("mxfp4", "mxint8"), ("q8_0", "fp8")]
)
def test_formats_of_weights_and_caches(form: str, kv: str, tmp_path: Path) -> None:
    session, reference = opened(Kind(form=form, compute="bf16", kv=kv, layers=1), tmp_path)
    compare(session, reference, prompts(2), WIDE if kv == "bf16" else 0.1)


def test_what_is_fused(tmp_path: Path) -> None:
    session, _ = opened(Kind(head_norms=True), tmp_path)
    stages = session._executor.stages(same_rows=True)
    count = {kind: sum(isinstance(s, kind) for s in stages) for kind in (Product, Attend, Generic)}
    # A layer: q, k and v together; attention; o; gate and up; down. Then the head. Views are free.
    assert count == {Product: 2 * 4 + 1, Attend: 2, Generic: 2}
    attends = [stage for stage in stages if isinstance(stage, Attend)]
    assert all(stage.spec.rope is not None and stage.spec.k_gain is not None for stage in attends)
    products = [stage for stage in stages if isinstance(stage, Product)]
    assert [len(stage.writes) for stage in products[:4]] == [3, 1, 1, 1]
    assert products[2].activation == "silu" and len(products[1].reads) == 2
    assert products[-1].is_wide and all(p.norm is not None for p in (products[0], products[-1]))
    # Sums go where their residual is, and the values of a layer share three places.
    assert [p.is_in_place for p in products] == [False, True, False, True] * 2 + [False]
    places = {stage.slot for stage in stages if not isinstance(stage, Generic)}
    assert places == {0, 1, 2, None, LOGITS}


def test_products_of_one_input_run_side_by_side(tmp_path: Path) -> None:
    kind = Kind(form="mxfp4", value_form="q8_0", compute="bf16", kv="bf16")
    session, reference = opened(kind, tmp_path)
    stages = session._executor.stages(same_rows=True)
    products = [stage for stage in stages if isinstance(stage, Product)]
    assert [p.leads for p in products] == [True, False, False, False, False] * 2 + [False]
    assert [p.joins for p in products] == [False, True, False, False, False] * 2 + [False]
    compare(session, reference, prompts(1), WIDE)
    compare(session, reference, decodes(1), WIDE)


@pytest.mark.parametrize("form", ["bf16", "mxfp4"])
def test_deterministic_bits_do_not_depend_on_which_rows_are_asked_for(
    form: str, tmp_path: Path
) -> None:
    kind = Kind(form=form, compute="bf16", kv="bf16")
    session, _ = opened(kind, tmp_path, deterministic=True)
    every = session.step(prompts(3, rows="all")).logits
    np.testing.assert_array_equal(session.step(prompts(3)).logits, every[-1:])


def test_a_chunk_and_a_tree(tmp_path: Path) -> None:
    session, reference = opened(Kind(layers=1), tmp_path)
    compare(session, reference, prompts(3), TIGHT)
    tree = Batch(
        tokens=np.array([5, 6, 7, 8]),
        positions=np.array([3, 4, 4, 5]),
        spans=(Span(0, 4, (4, 5)),),
        logit_rows=np.arange(4),
        parents=np.array([-1, 0, 0, 2]),
    )
    compare(session, reference, tree, TIGHT)
    for one in (session, reference):  # the second branch is kept: row 5 to row 4, 6 to 5
        one.copy_rows([(4 * 64 + 5, 4 * 64 + 4), (4 * 64 + 6, 4 * 64 + 5)])
    compare(session, reference, decodes(6), TIGHT)
    for one in (session, reference):
        one.copy_blocks([(4, 0), (0, 3)])
    batch = replace(decodes(7), spans=(Span(0, 1, (3, 5)),))
    compare(session, reference, batch, TIGHT)


def test_tokens_are_chosen_and_may_stay_on_the_device(tmp_path: Path) -> None:
    session, reference = opened(Kind(layers=1), tmp_path)
    choices = np.array([GREEDY, NO_CHOICE], CHOICE)
    first = replace(prompts(2, 3), choices=choices)
    expected = reference.step(prompts(2, 3)).logits
    output = session.step(first)
    assert output.tokens.tolist() == [expected[0].argmax(), -1]
    np.testing.assert_allclose(output.logits, expected[1:], atol=1e-4)
    choices = np.array([GREEDY, GREEDY], CHOICE)
    begun = session.begin(replace(decodes(2, 3), choices=choices))
    after = session.begin(replace(decodes(3, 4, tokens=np.array([-1, -2])), choices=choices))
    one, two = begun.result(), after.result()
    tokens = reference.step(decodes(2, 3)).logits.argmax(-1)
    assert one.tokens.tolist() == tokens.tolist() and not len(one.logits)
    following = reference.step(decodes(3, 4, tokens=tokens)).logits.argmax(-1)
    assert two.tokens.tolist() == following.tolist()


def test_heads_that_guess(tmp_path: Path) -> None:
    session, reference = opened(Kind(layers=1, guessing=2), tmp_path)
    assert session.caps.num_heads == 2 and not session.caps.chooses
    assert session.caps.vocab_size == VOCAB
    expected, found = reference.step(prompts(2, 3)), session.step(prompts(2, 3))
    np.testing.assert_allclose(found.logits, expected.logits, atol=1e-4)
    assert found.guesses.tolist() == expected.guesses.tolist()
    assert found.guesses.shape == (2, 2) and found.tokens is None
    nothing = Batch(*(np.empty(0, np.int64) for _ in range(2)), (), np.empty(0, np.int64))
    assert session.step(nothing).guesses.shape == (0, 2)


def test_nothing_asked_for_and_nothing_given(tmp_path: Path) -> None:
    session, reference = opened(Kind(layers=1), tmp_path)
    silent = replace(prompts(3), logit_rows=np.empty(0, np.int64))
    assert session.step(silent).logits.shape == (0, VOCAB)
    reference.step(silent)
    compare(session, reference, decodes(3), TIGHT)
    nothing = Batch(*(np.empty(0, np.int64) for _ in range(2)), (), np.empty(0, np.int64))
    assert session.step(nothing).logits.shape == (0, VOCAB)


def test_tokens_outside_the_table_are_refused(tmp_path: Path) -> None:
    session, _ = opened(Kind(layers=1), tmp_path)
    with pytest.raises(RequestError, match="token id 96"):
        session.step(decodes(0, tokens=np.array([VOCAB])))
    with pytest.raises(RequestError, match="position"):
        session.step(decodes(CTX))


def test_capabilities(tmp_path: Path) -> None:
    session, _ = opened(Kind(layers=1), tmp_path)
    caps = session.caps
    assert (caps.vocab_size, caps.ctx_len, caps.block_len) == (VOCAB, CTX, 64)
    assert caps.supports_trees and caps.chooses and caps.overlaps
    session.close()
    session.close()


def test_without_a_gpu(tmp_path: Path, monkeypatch) -> None:
    import triton

    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ResourceError, match="needs an NVIDIA GPU"):
        open_session(MemoryContainer(Kind(layers=1), tmp_path), None)
