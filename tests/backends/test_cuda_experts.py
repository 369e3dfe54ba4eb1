"""Experts of the cuda target in Triton's interpreter: sorting, products of every format, sums."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
pytest.importorskip("triton", reason="triton is not installed")

from cuda_container import Draft, Kind, MemoryContainer, chosen  # noqa: E402

from qeff.backends.cuda import layout  # noqa: E402
from qeff.backends.cuda.session import open_session  # noqa: E402
from qeff.backends.cuda.session.experts import Experts, cut_of, gate_of, pair_cut  # noqa: E402
from qeff.backends.cuda.session.flow import Flow  # noqa: E402
from qeff.backends.cuda.session.kernels.experts_around import Gate, Stack  # noqa: E402
from qeff.backends.cuda.session.kernels.experts_packed_pairs import packed_pairs  # noqa: E402
from qeff.backends.cuda.session.kernels.experts_packed_tiles import packed_tiles  # noqa: E402
from qeff.backends.cuda.session.kernels.experts_pairs import (  # noqa: E402
    Chosen,
    PairCut,
    down_pairs,
    up_pairs,
)
from qeff.backends.cuda.session.kernels.experts_route import route  # noqa: E402
from qeff.backends.cuda.session.kernels.experts_sort import most_tiles, sort_pairs  # noqa: E402
from qeff.backends.cuda.session.kernels.experts_tiles import tiles  # noqa: E402
from qeff.backends.cuda.session.linear import Scratch  # noqa: E402
from qeff.backends.cuda.session.matrix import PLAIN, Matrix  # noqa: E402
from qeff.backends.cuda.session.routing import Route, find_route  # noqa: E402
from qeff.compile.panels.encoding import code_rows  # noqa: E402
from qeff.compile.quantize.row_scale import restore_fp8  # noqa: E402
from qeff.container.program import Program  # noqa: E402
from qeff.ops import kinds, validate  # noqa: E402
from qeff.ops.base import Step  # noqa: E402
from qeff.ops.functions import sigmoid  # noqa: E402
from qeff.runtime.session import Batch, Span  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PACKED = tuple(layout.FORMATS)
NOBODY = np.zeros(0, np.int64)
STEP = Step(positions=NOBODY, owners=NOBODY, slots=NOBODY, rows=NOBODY)
LIMIT = {torch.bfloat16: 1.5e-2, torch.float16: 1.5e-3, torch.float32: 1e-5}


def draws(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def choices(tokens: int, chosen: int, experts: int, seed: int = 3) -> np.ndarray:
    """Different experts for each token."""
    source = np.random.default_rng(seed)
    return np.stack([source.permutation(experts)[:chosen] for _ in range(tokens)])


def on_device(array: np.ndarray, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.from_numpy(np.array(array)).to(DEVICE, dtype)


def stacked(form: str, values: np.ndarray, bias: np.ndarray | None = None):
    """A stack [experts, rows, columns] in a format, and the numbers that it stands for."""
    flat = values.reshape(-1, values.shape[-1])
    own_bias = None if bias is None else on_device(bias)
    if form in PLAIN:
        codes = on_device(flat, PLAIN[form])
        exact, matrix = codes.float().cpu().numpy(), Matrix(form, flat.shape, codes)
    else:
        coded, _ = code_rows(flat, form)
        (scales,) = coded.inner
        if form == "fp8":
            exact = restore_fp8(coded.codes, scales)
            codes = on_device(coded.codes).view(torch.float8_e4m3fn)
        else:
            stored, scales = layout.pack_rows(form, coded.codes, scales)
            exact = layout.unpack_rows(form, stored, scales, flat.shape[1])
            codes = on_device(stored)
        matrix = Matrix(form, flat.shape, codes, on_device(scales))
    return Stack(matrix, len(values), own_bias), exact.reshape(values.shape)


class Case:
    """Experts of some sizes, their inputs, and what they should give."""

    def __init__(
        self,
        form: str = "f32",
        kind: torch.dtype = torch.float32,
        *,
        sizes: tuple[int, int, int] = (5, 40, 24),
        with_bias: bool = True,
        **attrs: object,
    ) -> None:
        experts, self.width, middle = sizes
        self.kind, self.experts = kind, experts
        self.op = kinds()["moe"]
        self.attrs = self.op.complete(attrs)
        self.gate = gate_of(self.attrs)
        rows = middle * self.gate.turns
        self.biases = (None, None)
        if with_bias:
            self.biases = draws(5, experts, rows), draws(6, experts, self.width)
        size = self.width**-0.5
        up, down = size * draws(2, experts, rows, self.width), draws(4, experts, self.width, middle)
        up, self.up_exact = stacked(form, up, self.biases[0])
        down, self.down_exact = stacked(form, down, self.biases[1])
        self.stage = Experts(up, down, self.gate, (0, 1, 2), (3,))

    def check(self, index: np.ndarray, *, deterministic: bool = False, residual: bool = False):
        """Compare with the reference; gives the result."""
        tokens = len(index)
        x = on_device(draws(1, tokens, self.width), self.kind)
        weight = on_device(np.abs(draws(7, *index.shape)))
        beside = on_device(draws(8, tokens, self.width), self.kind) if residual else None
        out = torch.full((tokens, self.width), torch.nan, dtype=self.kind, device=DEVICE)
        self.stage.compute(
            x, Chosen(on_device(index), weight, beside), out, Scratch(DEVICE),
            deterministic=deterministic,
        )  # fmt: skip
        exact = x.float().cpu().numpy()
        inputs = [exact, index, weight.cpu().numpy(), self.up_exact, self.down_exact, *self.biases]
        expected = self.op.reference(inputs, self.attrs, STEP)[0]
        if beside is not None:
            expected = expected + beside.float().cpu().numpy()
        found = out.float().cpu().numpy()
        error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        assert error < LIMIT[self.kind], f"off by {error:.2g}"
        return out


def sort_cases() -> dict[str, tuple[np.ndarray, int]]:
    many = np.random.default_rng(0)
    return {
        "one pair": (np.array([[2]]), 4),
        "odd": (choices(7, 3, 5), 5),
        "one expert has all": (np.full((41, 1), 6), 9),
        "some have none": (many.integers(0, 3, (50, 2)) * 4, 13),
        "chunks": (many.integers(0, 20, (173, 3)), 20),
        "many experts": (many.integers(0, 300, (130, 2)), 300),
    }


@pytest.mark.parametrize("name", sort_cases())
def test_pairs_are_sorted_by_expert(name: str) -> None:
    index, experts = sort_cases()[name]
    tile = 64 if name == "chunks" else 16
    flat = index.reshape(-1)
    # As the choice of the best gives it: the first columns of wider rows.
    wide = np.full((len(index), index.shape[1] + 2), experts - 1)
    wide[:, : index.shape[1]] = index
    part = on_device(wide)[:, : index.shape[1]]
    found = sort_pairs(part, experts, tile, Scratch(DEVICE))
    order = found.order.cpu().numpy()
    assert np.array_equal(order, np.argsort(flat, kind="stable"))
    starts = np.concatenate([[0], np.cumsum(np.bincount(flat, minlength=experts))])
    expected = [
        (expert, first, min(tile, end - first))
        for expert, (start, end) in enumerate(pairwise(starts))
        for first in range(start, end, tile)
    ]
    table = found.table.cpu().numpy()
    assert len(table) == most_tiles(len(flat), experts, tile) >= len(expected)
    assert [tuple(entry[:3]) for entry in table[: len(expected)]] == expected
    assert (table[len(expected) :, 0] == -1).all()


def test_an_expert_that_does_not_exist_is_not_read() -> None:
    found = sort_pairs(on_device(np.array([[-7, 99, 1]])), 3, 16, Scratch(DEVICE))
    assert found.order.cpu().tolist() == [0, 2, 1]
    assert found.table.cpu()[:, 0].tolist() == [0, 1, 2]


FORMS = [
    ("f32", torch.float32), ("bf16", torch.bfloat16), ("f16", torch.float16),
    ("fp8", torch.bfloat16), *((form, torch.bfloat16) for form in PACKED),
    ("q8_0", torch.float16),
]  # fmt: skip


@pytest.mark.parametrize(("form", "kind"), FORMS)
def test_every_format(form: str, kind: torch.dtype) -> None:
    case = Case(form, kind, sizes=(3, 32, 32))
    assert not case.stage._takes_few(8, kind)
    case.check(choices(4, 2, 3), residual=True)
    if kind == torch.bfloat16 or form not in PACKED:
        assert case.stage._takes_few(2, kind)
        case.check(choices(1, 1 if form in PACKED else 2, 3))


@pytest.mark.parametrize("form", ["bf16", "mxfp6", "q8_0"])
def test_rows_of_several_pieces(form: str) -> None:
    """Few pairs, whose rows are longer than what a program has at once."""
    stack, exact = stacked(form, draws(2, 3, 13, 288), draws(3, 3, 13))
    chosen = Chosen(on_device(np.array([[2, 0]])), on_device(np.array([[0.5, 2.0]])))
    x = on_device(draws(1, 2, 288), torch.bfloat16)
    cut = PairCut(16, 1, 4, 2) if form in PACKED else PairCut(4, 64, 4)
    known = x.float().cpu().numpy()
    bias = stack.bias.cpu().numpy()
    made = torch.full((2, 13), torch.nan, device=DEVICE)
    expected = np.stack([exact[e] @ known[0] + bias[e] for e in (2, 0)])
    parts = np.stack([exact[2] @ known[0] + bias[2], exact[0] @ known[1] + bias[0]])
    if form in PACKED:
        packed_pairs(x[:1], stack, Gate(), chosen.index, made, cut)
        np.testing.assert_allclose(made.cpu(), expected, rtol=1e-4, atol=1e-4)
        packed_pairs(x, stack, Gate(), chosen.index, made, cut)
        np.testing.assert_allclose(made.cpu(), parts, rtol=1e-4, atol=1e-4)
        return
    up_pairs(x[:1], stack, Gate(), chosen.index, made, cut)
    np.testing.assert_allclose(made.cpu(), expected, rtol=1e-4, atol=1e-4)
    made = torch.full((1, 13), torch.nan, device=DEVICE)
    down_pairs(x, stack, chosen, made, cut)
    np.testing.assert_allclose(made.cpu()[0], [0.5, 2.0] @ parts, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tokens", [2, 5], ids=["few", "sorted"])
@pytest.mark.parametrize(
    ("gate", "activation"),
    [
        ("half", "gelu_tanh"),
        ("interleaved", "swiglu_clamped"),
        ("interleaved", "silu"),
        ("none", "gelu"),
    ],
)
def test_gates(tokens: int, gate: str, activation: str) -> None:
    # Sizes that no tile divides, and limits that hold some values back.
    case = Case(sizes=(4, 11, 7), gate=gate, activation=activation, alpha=1.3, limit=0.7)
    case.check(choices(tokens, 2, 4), residual=True)


@pytest.mark.parametrize(
    "index",
    [
        np.full((37, 1), 3),
        choices(4, 5, 5),
        choices(23, 3, 4) % 4,
        np.array([[1, 1]] * 9),
    ],
    ids=["one expert", "all experts", "one has none", "the same twice"],
)
def test_how_tokens_are_spread(index: np.ndarray) -> None:
    Case(with_bias=False).check(index)


@pytest.mark.parametrize(
    ("form", "tile"),
    [("f32", 16), ("bf16", 64), ("bf16", 128), ("mxfp4", 32), ("mxfp4", 64), ("q8_0", 64)],
)  # fmt: skip
def test_every_tile(form: str, tile: int) -> None:
    """Of any number of pairs, either operand first."""
    kind = torch.float32 if form == "f32" else torch.bfloat16
    case = Case(form, kind, sizes=(2, 32, 16))
    stack, exact = case.stage.up, case.up_exact
    index = np.random.default_rng(1).integers(0, 2, (45, 1))
    x = on_device(draws(1, 45, 32), kind)
    pairs = sort_pairs(on_device(index), 2, tile, Scratch(DEVICE))
    known = x.float().cpu().numpy()
    owner = index.reshape(-1)
    expected = np.einsum("pk,prk->pr", known, exact[owner]) + case.biases[0][owner]
    product = packed_tiles if form in PACKED else tiles
    for is_flipped in (False, True)[: 1 if form in PACKED else 2]:
        cut = replace(
            cut_of(stack, tile, kind), is_flipped=is_flipped, group=2, rows=32 if tile == 16 else 16
        )
        out = torch.full((45, 32), torch.nan, dtype=kind, device=DEVICE)
        product(x, stack, Gate(), out, pairs, cut, is_first=True)
        found = np.empty_like(expected)
        found[pairs.order.cpu().numpy()] = out.float().cpu().numpy()
        assert np.linalg.norm(found - expected) / np.linalg.norm(expected) < LIMIT[kind]


@pytest.mark.parametrize("form", ["bf16", "mxfp4"])
def test_a_token_alone_has_the_same_bits(form: str) -> None:
    case = Case(form, torch.bfloat16, sizes=(3, 32, 32))
    index = choices(7, 2, 3)
    together = case.check(index, deterministic=True)
    alone = case.check(index[:1], deterministic=True)
    assert torch.equal(together[:1], alone)


def test_cuts_keep_gate_and_up_together() -> None:
    stage = Case().stage
    assert pair_cut(stage.up).rows % 2 == 0
    assert stage.bytes_of(10, 2, torch.bfloat16) == 10 * 2 * (24 + 40) * 2


@pytest.mark.parametrize(
    ("before", "after"),
    [("none", "softmax"), ("softmax", "none"), ("softmax", "sum"), ("sigmoid", "sum")],
)
def test_the_choice_of_experts(before: str, after: str) -> None:
    scores = np.round(3 * draws(1, 7, 37), 1)  # some are equal
    scores[2] = 1.5
    scores[3, 4:] = -300.0  # shares of zero are equal too
    shares = scores
    if before == "softmax":
        shares = np.exp(scores - scores.max(1, keepdims=True))
        shares = shares / shares.sum(1, keepdims=True)
    elif before == "sigmoid":
        shares = sigmoid(scores)
    order = np.argsort(-shares, axis=1, kind="stable")[:, :5]
    best = np.take_along_axis(shares, order, 1)
    if after == "softmax":
        best = np.exp(best - best.max(1, keepdims=True))
    if after != "none":
        best = best / best.sum(1, keepdims=True)
    index = torch.full((7, 5), -1, device=DEVICE)
    weight = torch.full((7, 5), torch.nan, device=DEVICE)
    route(on_device(scores), index, weight, before, after)
    np.testing.assert_allclose(weight.cpu(), best, rtol=2e-5, atol=1e-7)
    np.testing.assert_array_equal(index.cpu(), order)


def routed(before: str, after: str) -> Flow:
    """A program whose last op but one has experts by this way."""
    draft = Draft(Kind())
    x = draft.add("embed", [draft.weight((9, 32)), 0], (32,), offset=0, dtype="f32")
    scores = draft.linear(x, 4)
    if before == "softmax":
        scores = draft.add("softmax", [scores], (4,), axis=0)
    elif before == "sigmoid":
        scores = draft.add("unary", [scores], (4,), function="sigmoid")
    weight, index = chosen(draft, scores)
    if after == "softmax":
        weight = draft.add("softmax", [weight], (2,), axis=0)
    elif after == "gathered":  # the best scores themselves are read by nobody
        weight = draft.add("gather", [scores, index], (2,), axis=0)
    elif after == "scaled":
        weight = draft.add("binary", [weight, weight], (2,), function="mul")
    up, down = draft.weight((4, 32, 32)), draft.weight((4, 32, 16))
    out = draft.rows(draft.add("moe", [x, index, weight, up, down], (32,)))
    program = Program(tuple(draft.values), tuple(draft.ops), (), 0, 1, out)
    validate(program)
    return Flow(program, same_rows=True)


def test_ways_to_experts() -> None:
    for before, after in (("none", "softmax"), ("softmax", "none"), ("sigmoid", "none")):
        flow = routed(before, after)
        last = len(flow.program.ops) - 2
        place, taken, stage = find_route(flow, last)
        assert (stage.before, stage.after, stage.chosen) == (before, after, 2)
        # Everything between the router's product and the experts, from the choice on.
        assert taken == set(range(2, last)) and flow.program.ops[place].kind == "topk"
        assert stage.reads == flow.program.ops[1].outputs
        assert stage.writes == flow.inputs[last][1:3]
    for after in ("scaled", "gathered"):
        other = routed("softmax", after)
        assert find_route(other, len(other.program.ops) - 2) is None


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "beside a shared one"])
def test_a_model_with_experts(shared: bool, tmp_path: Path) -> None:
    container = MemoryContainer(Kind(experts=5, shared_expert=shared, layers=1), tmp_path)
    session = open_session(container, None, device=str(DEVICE))
    stages = session._executor.stages(same_rows=True)
    mixed = [stage for stage in stages if isinstance(stage, Experts)]
    # What experts are added to is read by their last kernel, and their sums share memory.
    assert len(mixed) == 1 and mixed[0].slot is not None
    assert len(mixed[0].reads) == (3 if shared else 4)
    assert [(s.before, s.after) for s in stages if isinstance(s, Route)] == [("softmax", "sum")]
    reference = container.reference()
    for one in (session, reference):
        one.reserve(6)
    for count, start in ((2, 0),) if shared else ((3, 0), (1, 3)):
        tokens = np.arange(count) * 5 % 90
        batch = Batch(
            tokens, np.arange(start, start + count), (Span(0, count, (4, 5)),), np.arange(count)
        )
        expected, found = reference.step(batch).logits, session.step(batch).logits
        assert np.abs(found - expected).max() <= 2e-5 * np.abs(expected).max()
