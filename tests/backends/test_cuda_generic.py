"""Every op kind that the CUDA engine runs as torch calls, against its reference in numpy."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from qeff.backends.cuda.session.generic import (  # noqa: E402
    ACTIVATIONS,
    BINARY,
    COMPUTE,
    UNARY,
    Call,
)
from qeff.backends.cuda.session.generic_moves import MOVES  # noqa: E402
from qeff.backends.cuda.session.step_info import StepInfo  # noqa: E402
from qeff.ops import Step, kinds  # noqa: E402
from qeff.ops import functions as numpy_functions  # noqa: E402
from qeff.ops.binary import FUNCTIONS  # noqa: E402

TOKENS, WIDTH = 5, 6
OWNERS = np.array([0, 0, 1, 1, 1])
ROWS = np.array([4, 1, 1])
STEP = Step(positions=np.arange(TOKENS), owners=OWNERS, slots=np.arange(TOKENS), rows=ROWS)


def info() -> StepInfo:
    whole = torch.arange(TOKENS, dtype=torch.int32)
    return StepInfo(
        num_tokens=TOKENS,
        num_spans=2,
        num_rows=len(ROWS),
        tokens=whole.long(),
        positions=whole,
        owners=torch.from_numpy(OWNERS).int(),
        slots=whole,
        starts=torch.tensor([0, 2, 5], dtype=torch.int32),
        firsts=torch.zeros(2, dtype=torch.int32),
        tables=torch.zeros((2, 1), dtype=torch.int32),
        rows=torch.from_numpy(ROWS),
        ancestors=None,
        longest=5,
        is_decode=False,
    )


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def wholes(*shape: int, low: int = -9, high: int = 9, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(low, high, shape)


def compare(kind: str, inputs: list[np.ndarray | None], **attrs: object) -> None:
    known = kinds()[kind]
    full = known.complete(attrs)
    expected = known.reference(inputs, full, STEP)
    tensors = [None if x is None else torch.from_numpy(np.array(x)) for x in inputs]
    function = (COMPUTE | MOVES)[kind]
    found = function(Call(tensors, full, torch.float32, info()))
    assert len(found) == len(expected)
    for got, wanted in zip(found, expected, strict=True):
        assert tuple(got.shape) == wanted.shape
        assert got.numpy().dtype == wanted.dtype
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_every_kind_is_there() -> None:
    own = {"embed", "linear", "attention", "moe"}  # stages of their own
    assert set(COMPUTE) | set(MOVES) | own == set(kinds())
    assert set(UNARY) == {*numpy_functions.UNARY, "not"}
    assert set(ACTIVATIONS) == set(numpy_functions.ACTIVATIONS)
    assert set(BINARY) == set(FUNCTIONS)


@pytest.mark.parametrize("function", sorted(numpy_functions.UNARY))
def test_unary(function: str) -> None:
    x = floats(TOKENS, WIDTH)
    if function in ("log", "sqrt", "rsqrt"):
        x = np.abs(x) + np.float32(0.1)
    compare("unary", [x * 3], function=function)


@pytest.mark.parametrize("function", ["abs", "neg", "sign"])
def test_unary_of_whole_numbers(function: str) -> None:
    compare("unary", [wholes(TOKENS, WIDTH)], function=function)
    compare("unary", [wholes(TOKENS, WIDTH) > 0], function="not")


@pytest.mark.parametrize("function", sorted(FUNCTIONS))
def test_binary(function: str) -> None:
    if function in ("and", "or", "xor"):
        compare("binary", [wholes(TOKENS, 3) > 0, wholes(TOKENS, 3, seed=2) > 0], function=function)
        return
    a, b = floats(TOKENS, WIDTH), np.abs(floats(TOKENS, 1, seed=2)) + np.float32(0.5)
    if function == "pow":
        a = np.abs(a)
    compare("binary", [a, b], function=function)
    compare("binary", [a, floats(WIDTH, seed=3) ** 2 + np.float32(0.1)], function=function)
    whole = wholes(TOKENS, 4, low=1, high=4, seed=4)
    other = wholes(TOKENS, 4)
    compare("binary", [np.abs(other) if function == "pow" else other, whole], function=function)


def test_where_and_cast() -> None:
    x = floats(TOKENS, WIDTH) * 4
    compare("where", [x > 0, x, floats(TOKENS, 1, seed=5)])
    for to in ("i64", "i32", "f32", "bool"):
        compare("cast", [x], to=to)
    compare("cast", [wholes(TOKENS)], to="f32")


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_gated(activation: str) -> None:
    compare("gated", [floats(TOKENS, 4), floats(TOKENS, 4, seed=6)], activation=activation)


@pytest.mark.parametrize("function", ["rms", "layer"])
def test_norm(function: str) -> None:
    x, gain, shift = floats(TOKENS, 3, WIDTH), floats(WIDTH, seed=1), floats(WIDTH, seed=2)
    compare("norm", [x, gain, shift], function=function, eps=1e-5)
    compare("norm", [x], function=function, eps=1e-5)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("half", [2, 4])
def test_rope(interleaved: bool, half: int) -> None:
    angles = floats(TOKENS, half, seed=7)
    x = floats(TOKENS, 3, 8)
    compare("rope", [x, np.cos(angles), np.sin(angles)], interleaved=interleaved)


def test_products_and_sums() -> None:
    compare("matmul", [floats(TOKENS, 2, 3, 4), floats(4, 5, seed=1)])
    compare("matmul", [floats(TOKENS, 2, 3, 4), floats(TOKENS, 1, 4, 5, seed=1)])
    compare("softmax", [floats(TOKENS, 3, WIDTH) * 9], axis=1)
    compare("cumsum", [floats(TOKENS, 3, WIDTH)], axis=0)
    compare("cumsum", [wholes(TOKENS, 3)], axis=0)


@pytest.mark.parametrize("function", ["max", "mean", "min", "prod", "sum"])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reduce(function: str, keepdims: bool) -> None:
    x = floats(TOKENS, 3, 4)
    for axes in ((0,), (1,), (0, 1)):
        compare("reduce", [x], function=function, axes=axes, keepdims=keepdims)
    compare("reduce", [wholes(TOKENS, 3, 4)], function=function, axes=(1,), keepdims=keepdims)


@pytest.mark.parametrize("largest", [True, False])
def test_topk_takes_the_first_of_equals(largest: bool) -> None:
    compare("topk", [wholes(TOKENS, 9, low=0, high=3)], k=4, axis=0, largest=largest)
    compare("topk", [floats(TOKENS, 9)], k=2, axis=0, largest=largest)


def test_moves() -> None:
    x = floats(TOKENS, 2, 6)
    compare("reshape", [x], shape=(3, 4))
    compare("transpose", [x], perm=(1, 0))
    compare("expand", [floats(TOKENS, 1, 6)], shape=(4, 6))
    compare("slice", [x], axis=1, start=1, stop=6, step=2)
    compare("concat", [x, floats(2, 3, seed=1), x], axis=1)
    index = wholes(TOKENS, 2, 3, low=0, high=6)
    compare("gather", [x, index], axis=1)
    compare("scatter", [x, index, floats(TOKENS, 2, 3, seed=2)], axis=1, function="add")
    distinct = np.broadcast_to(np.array([3, 0, 5]), (TOKENS, 2, 3))
    compare("scatter", [x, distinct, floats(TOKENS, 2, 3, seed=2)], axis=1, function="set")
    compare("scatter", [floats(2, 6), distinct, floats(TOKENS, 2, 3)], axis=1, function="set")
    compare("gather_rows", [x])


@pytest.mark.parametrize("function", ["max", "min"])
def test_reduce_span(function: str) -> None:
    compare("reduce_span", [wholes(TOKENS, 2)], function=function)
    compare("reduce_span", [floats(TOKENS)], function=function)


def test_a_narrow_type_is_kept_and_computed_wide() -> None:
    x = torch.tensor([[256.0, 1.0]], dtype=torch.bfloat16)  # their sum has no bf16
    call = Call(
        [x], kinds()["reduce"].complete({"function": "mean", "axes": (0,)}), x.dtype, info()
    )
    (mean,) = COMPUTE["reduce"](call)
    assert mean.dtype == torch.bfloat16 and mean.item() == 128.0  # 128.5 rounded once
