"""unary, binary, where, cast and the ops that move, cut, pick and reduce, against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from op_check import T, empty_step, run, token, weight

from qeff.ops import Step
from qeff.ops.base import RuleError
from qeff.ops.functions import UNARY

RNG = np.random.default_rng(12)

TORCH_UNARY = {
    "abs": torch.abs,
    "ceil": torch.ceil,
    "cos": torch.cos,
    "erf": torch.erf,
    "exp": torch.exp,
    "floor": torch.floor,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "log": torch.log,
    "neg": torch.neg,
    "reciprocal": torch.reciprocal,
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "round": torch.round,
    "rsqrt": torch.rsqrt,
    "sigmoid": torch.sigmoid,
    "sign": torch.sign,
    "silu": F.silu,
    "sin": torch.sin,
    "softplus": F.softplus,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "tanh": torch.tanh,
}


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def test_every_unary_function_is_compared() -> None:
    assert set(TORCH_UNARY) == set(UNARY)


@pytest.mark.parametrize("name", sorted(TORCH_UNARY))
def test_unary(name: str) -> None:
    x = normal(T, 3, 7) * 4
    x[0, 0, :4] = [-90.0, 90.0, 0.5, 2.5]  # far out, and halves
    if name in ("log", "sqrt", "rsqrt"):
        x = np.abs(x) + 1e-3
    if name == "exp":
        x = np.clip(x, -80, 80)
    (y,) = run("unary", [token(x)], function=name)
    np.testing.assert_allclose(
        y, TORCH_UNARY[name](torch.from_numpy(x)).numpy(), rtol=3e-6, atol=1e-6
    )


def test_unary_of_whole_numbers_and_truth() -> None:
    x = RNG.integers(-9, 9, (T, 3))
    np.testing.assert_array_equal(run("unary", [token(x)], function="neg")[0], -x)
    np.testing.assert_array_equal(run("unary", [token(x > 0)], function="not")[0], x <= 0)
    with pytest.raises(RuleError, match="i64"):
        run("unary", [token(x)], function="exp")


TORCH_BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "max": torch.maximum,
    "min": torch.minimum, "pow": torch.pow, "mod": torch.remainder, "fmod": torch.fmod,
    "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge,
}  # fmt: skip


@pytest.mark.parametrize("shapes", [((3, 7), (3, 7)), ((3, 1), (1, 7))])
@pytest.mark.parametrize("kind", ["token", "weight"])
@pytest.mark.parametrize("name", sorted(TORCH_BINARY))
def test_binary(name: str, kind: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a = np.abs(normal(T, *shapes[0])) + 0.1 if name == "pow" else normal(T, *shapes[0])
    b = normal(*((T, *shapes[1]) if kind == "token" else shapes[1]))
    (y,) = run("binary", [token(a), (kind, b)], function=name)
    theirs = TORCH_BINARY[name](torch.from_numpy(a), torch.from_numpy(b))
    np.testing.assert_allclose(y, theirs.numpy(), rtol=1e-5, atol=1e-6)


def test_binary_of_whole_numbers_divides_towards_zero() -> None:
    a, b = np.array([7, -7, 7, -7, 0]), np.array([2, 2, -2, -2, 3])
    theirs = torch.div(torch.from_numpy(a), torch.from_numpy(b), rounding_mode="trunc")
    np.testing.assert_array_equal(run("binary", [token(a), token(b)], function="div")[0], theirs)
    theirs = torch.remainder(torch.from_numpy(a), torch.from_numpy(b))
    np.testing.assert_array_equal(run("binary", [token(a), token(b)], function="mod")[0], theirs)


@pytest.mark.parametrize("name", ["and", "or", "xor"])
def test_binary_of_truth(name: str) -> None:
    a, b = RNG.random((T, 9)) > 0.5, RNG.random((T, 9)) > 0.5
    theirs = getattr(torch, f"logical_{name}")(torch.from_numpy(a), torch.from_numpy(b))
    np.testing.assert_array_equal(run("binary", [token(a), token(b)], function=name)[0], theirs)


@pytest.mark.parametrize(
    "inputs",
    [
        [token(normal(T, 3)), token(normal(T, 3, 3))],  # different numbers of axes
        [token(normal(T, 3)), weight(normal(2, 3))],  # a weight with more axes
        [token(normal(T, 3)), token(np.ones((T, 3), np.int64))],
        [weight(normal(3)), weight(normal(3))],
    ],
)
def test_binary_refuses_what_does_not_fit(inputs: list) -> None:
    with pytest.raises(RuleError):
        run("binary", inputs, function="add")


def test_where_and_cast() -> None:
    c, a, b = RNG.random((T, 3, 7)) > 0.5, normal(T, 3, 1), normal(7)
    (y,) = run("where", [token(c), token(a), weight(b)])
    theirs = torch.where(torch.from_numpy(c), torch.from_numpy(a), torch.from_numpy(b))
    np.testing.assert_array_equal(y, theirs)
    x = normal(T, 3) * 5
    np.testing.assert_array_equal(
        run("cast", [token(x)], to="i64")[0], torch.from_numpy(x).to(torch.int64)
    )
    half = run("cast", [token(x)], to="bf16")[0].astype(np.float32)
    np.testing.assert_array_equal(half, torch.from_numpy(x).to(torch.bfloat16).float())


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 2)])
@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "prod"])
def test_reduce(name: str, axes: tuple[int, ...], keepdims: bool) -> None:
    x = normal(T, 3, 5, 2)
    (y,) = run("reduce", [token(x)], function=name, axes=axes, keepdims=keepdims)
    theirs = torch.from_numpy(x)
    for axis in sorted(axes, reverse=True):
        names = {"max": "amax", "min": "amin"}
        theirs = getattr(torch, names.get(name, name))(theirs, axis + 1, keepdim=keepdims)
    np.testing.assert_allclose(y, theirs.numpy(), rtol=2e-5, atol=1e-6)


def test_softmax_and_cumsum() -> None:
    x = normal(T, 3, 5) * 30
    for axis in (0, 1):
        (y,) = run("softmax", [token(x)], axis=axis)
        np.testing.assert_allclose(y, torch.softmax(torch.from_numpy(x), axis + 1), atol=1e-6)
        (y,) = run("cumsum", [token(x)], axis=axis)
        summed = torch.cumsum(torch.from_numpy(x), axis + 1)
        np.testing.assert_allclose(y, summed, rtol=1e-5, atol=1e-4)  # terms are up to 100


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("axis", [0, 1])
def test_topk(axis: int, largest: bool) -> None:
    x = normal(T, 6, 4)
    values, index = run("topk", [token(x)], k=3, axis=axis, largest=largest)
    theirs = torch.topk(torch.from_numpy(x), 3, axis + 1, largest)
    np.testing.assert_array_equal(values, theirs.values)
    np.testing.assert_array_equal(index, theirs.indices)


def test_topk_takes_the_lower_index_of_equal_elements() -> None:
    x = np.tile(np.array([1, 3, 3, 2], np.float32), (T, 1))
    assert run("topk", [token(x)], k=3, axis=0)[1][0].tolist() == [1, 2, 3]


def test_gather_and_scatter() -> None:
    x, index = normal(T, 3, 7), RNG.integers(0, 7, (T, 3, 2))
    (y,) = run("gather", [token(x), token(index)], axis=1)
    np.testing.assert_array_equal(y, torch.gather(torch.from_numpy(x), 2, torch.from_numpy(index)))
    index, update = np.argsort(RNG.random((T, 3, 7)))[..., :2], normal(T, 3, 2)
    given = torch.from_numpy(x), torch.from_numpy(index), torch.from_numpy(update)
    (y,) = run("scatter", [token(x), token(index), token(update)], axis=1)
    np.testing.assert_array_equal(y, given[0].scatter(2, *given[1:]))
    (y,) = run("scatter", [token(x), token(index), token(update)], axis=1, function="add")
    np.testing.assert_allclose(y, given[0].scatter_add(2, *given[1:]), rtol=1e-6)


def test_scatter_into_a_constant() -> None:
    index, zeros = RNG.integers(0, 7, (T, 2)), np.zeros(7, np.float32)
    (y,) = run("scatter", [weight(zeros), token(index), weight(np.ones(2, np.float32))], axis=0)
    np.testing.assert_array_equal(y, torch.zeros(T, 7).scatter(1, torch.from_numpy(index), 1.0))


def test_moving_axes() -> None:
    x = normal(T, 6, 4)
    np.testing.assert_array_equal(
        run("slice", [token(x)], axis=0, start=1, stop=6, step=2)[0], x[:, 1:6:2]
    )
    np.testing.assert_array_equal(run("transpose", [token(x)], perm=(1, 0))[0], x.swapaxes(1, 2))
    np.testing.assert_array_equal(run("reshape", [token(x)], shape=(2, 12))[0], x.reshape(T, 2, 12))
    wide = run("expand", [token(x[:, :1])], shape=(3, 4))[0]
    np.testing.assert_array_equal(wide, torch.from_numpy(x[:, :1]).expand(T, 3, 4))
    w = normal(6, 2)
    (y,) = run("concat", [token(x), weight(w), token(x)], axis=1)
    np.testing.assert_array_equal(y, np.concatenate([x, np.broadcast_to(w, (T, 6, 2)), x], 2))


def test_gather_rows() -> None:
    x, plain = normal(T, 4), empty_step()
    step = Step(plain.positions, plain.owners, plain.slots, rows=np.array([3, 0, 3]))
    np.testing.assert_array_equal(run("gather_rows", [token(x)], step)[0], x[[3, 0, 3]])
