"""Whole small models on a GPU against the reference in numpy: every format, captured steps too.

Needs an NVIDIA GPU: ``pytest -m cuda``. Elsewhere the same code runs interpreted, in the other
tests of this target.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from cuda_container import VOCAB, Kind, MemoryContainer  # noqa: E402

from qeff.backends.cuda.session import open_session  # noqa: E402
from qeff.runtime.session import CHOICE, GREEDY, Batch, Span  # noqa: E402

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
BLOCKS = 80
BF16 = {"compute": "bf16", "kv": "bf16"}
KINDS = {
    "f32": (Kind(), 1e-4),
    "f32 head norms": (Kind(head_norms=True, is_tied=True, window=3), 1e-4),
    "f32 biases": (Kind(biases=True, norm="layer", softcap=5.0, activation="gelu_tanh"), 1e-4),
    "f16": (Kind(form="f16", compute="f16", kv="f16"), 0.02),
    **{form: (Kind(form=form, **BF16), 0.06)
       for form in ("bf16", "q8_0", "q4_0", "mxfp8", "mxfp6", "mxfp4")},
    "fp8": (Kind(form="fp8", **BF16), 0.2),  # inputs are rounded too
    "f32 experts": (Kind(experts=5), 1e-4),
    "f32 experts and a shared one": (Kind(experts=5, shared_expert=True), 1e-4),
    "mxfp4 experts": (Kind(form="mxfp4", experts=5), 1e-4),
    "bf16 kv fp8": (Kind(form="bf16", compute="bf16", kv="fp8"), 0.15),
    "bf16 kv mxint8": (Kind(form="bf16", compute="bf16", kv="mxint8"), 0.1),
}  # fmt: skip


def prompts(*lens: int, rows: str = "last", firsts: tuple[int, ...] = ()) -> Batch:
    """Sequences of these lengths, from these positions on, in blocks that are not in order."""
    starts = np.concatenate([[0], np.cumsum(lens)])
    tokens = np.random.default_rng(sum(lens)).integers(0, VOCAB, sum(lens))
    spans = tuple(
        Span(int(starts[i]), int(starts[i + 1]), (2 * i + 1, 2 * i)) for i in range(len(lens))
    )
    first = firsts or (0,) * len(lens)
    positions = np.concatenate([np.arange(f, f + n) for n, f in zip(lens, first, strict=True)])
    asked = starts[1:] - 1 if rows == "last" else np.arange(sum(lens))
    return Batch(tokens, positions, spans, asked)


def decodes(*places: int, tokens: np.ndarray | None = None) -> Batch:
    batch = prompts(*(1 for _ in places), firsts=places)
    return batch if tokens is None else replace(batch, tokens=np.asarray(tokens))


def steps() -> Iterator[Batch]:
    """Prompts and decodes of all the ways there are, each of them again where it is captured."""
    yield prompts(3, 70, 5)
    yield prompts(20, 70, rows="all")  # again from the start
    for i in range(3):  # captured, then played back
        yield decodes(20 + i, 70 + i)
    yield decodes(23, 73, 0)  # padded to four
    yield prompts(5, firsts=(24,))
    yield prompts(5, firsts=(29,))
    yield from [tree()] * 2
    yield from [decodes(*[0] * 20)] * 2
    for i in range(3):  # a prompt beside decodes: run, captured, played back
        yield prompts(1, 1, 90 - i, 1, firsts=(38 + i, 74 + i, 0, 1 + i))
    for _ in range(3):
        yield prompts(100)
    for _ in range(3):
        yield prompts(128)  # alone, without padding


def tree() -> Batch:
    spans = (Span(0, 4, (1, 0)),)
    tokens, positions = np.array([5, 6, 7, 8]), np.array([34, 35, 35, 36])
    return Batch(tokens, positions, spans, np.arange(4), np.array([-1, 0, 0, 2]))


@pytest.mark.parametrize(
    ("name", "deterministic"),
    [*((name, False) for name in KINDS), *((name, True) for name in ("f32", "bf16", "mxfp4"))],
)
def test_a_model(name: str, deterministic: bool, tmp_path: Path) -> None:
    kind, limit = KINDS[name]
    container = MemoryContainer(kind, tmp_path, max_batch=32)
    session = open_session(container, None, device="cuda", deterministic=deterministic)
    reference = container.reference()
    for one in (session, reference):
        one.reserve(BLOCKS)
    for at, step in enumerate(steps()):
        expected, found = reference.step(step).logits, session.step(step).logits
        worst = np.abs(found - expected).max() / np.abs(expected).max()
        assert worst <= limit, f"step {at} is off by {worst:.2g}"
    assert session._graphs.num_captured >= 8
    session.close()


@pytest.mark.parametrize("form", ["bf16", "mxfp4"])
def test_tokens_that_the_host_does_not_know(form: str, tmp_path: Path) -> None:
    """Two steps on their way at any time; every token is as good as the reference's best."""
    container = MemoryContainer(Kind(form=form, is_tied=True, **BF16), tmp_path, max_batch=32)
    session, reference = open_session(container, None, device="cuda"), container.reference()
    for one in (session, reference):
        one.reserve(BLOCKS)
    choices, count = np.array([GREEDY, GREEDY], CHOICE), 6
    tokens, found = np.array([3, 4]), []
    begun = session.begin(replace(decodes(0, 0, tokens=tokens), choices=choices))
    for place in range(1, count):
        open_tokens = decodes(place, place, tokens=np.array([-1, -2]))
        following = session.begin(replace(open_tokens, choices=choices))
        found.append(begun.result().tokens)
        begun = following
    found.append(begun.result().tokens)
    for place, chosen in enumerate(found):
        logits = reference.step(decodes(place, place, tokens=tokens)).logits
        missing = logits.max(-1) - logits[np.arange(2), chosen]
        assert (missing <= 0.05 * np.abs(logits).max()).all(), f"step {place} chose {chosen}"
        tokens = chosen


def test_deterministic_bits_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    container = MemoryContainer(Kind(form="bf16", **BF16), tmp_path, max_batch=32)
    session = open_session(container, None, device="cuda", deterministic=True)
    session.reserve(BLOCKS)
    alone = session.step(prompts(40)).logits
    lone, others = prompts(40), prompts(3, 70)
    spans = (lone.spans[0], Span(40, 43, (3, 2)), Span(43, 113, (5, 4)))
    both = Batch(
        np.concatenate([lone.tokens, others.tokens]),
        np.concatenate([lone.positions, others.positions]),
        spans,
        np.array([39]),
    )
    for _ in range(3):
        np.testing.assert_array_equal(session.step(both).logits, alone)
