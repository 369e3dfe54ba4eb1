"""Every op kind on the native engine against its numpy reference, on every instruction set here.

Attention and linear have tests of their own. Sizes are odd on purpose: no vector, no block.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_folder import one_span, open_folder, run_op, single_op, write_folder

from qeff._native import load
from qeff.core.errors import RequestError
from qeff.ops import Step, kinds
from qeff.ops.binary import ARITHMETIC, COMPARISONS, LOGIC
from qeff.ops.functions import ACTIVATIONS, UNARY
from qeff.runtime.session import Batch, Span

RNG = np.random.default_rng(5)
START = RNG.bit_generator.state
COUNTS = (1, 5)  # tokens of a step


@pytest.fixture(autouse=True, params=load().isas())
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("QEFF_ISA", request.param)
    RNG.bit_generator.state = START  # a test's numbers do not depend on the tests before it
    return str(request.param)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def whole(low: int, high: int, *shape: int, dtype: type = np.int64) -> np.ndarray:
    return RNG.integers(low, high, shape).astype(dtype)


def truth(*shape: int) -> np.ndarray:
    return RNG.random(shape) > 0.5


class Weight:
    """An input that is a weight."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array


Item = np.ndarray | Weight | None


def arrays_of(items: list[Item]) -> tuple[list[np.ndarray | None], list[bool]]:
    arrays = [item.array if isinstance(item, Weight) else item for item in items]
    return arrays, [isinstance(item, Weight) for item in items]


def reference(
    kind: str, arrays: list[np.ndarray | None], attrs: dict[str, Any], step: Step, output: int = 0
) -> np.ndarray:
    op = kinds()[kind]
    return np.asarray(op.reference(arrays, op.complete(attrs), step)[output], np.float32)


def step_of(num_tokens: int) -> Step:
    index = np.arange(num_tokens)
    return Step(positions=index, owners=np.zeros_like(index), slots=index, rows=index)


def check(
    folder: Path,
    kind: str,
    items: list[Item],
    *,
    exact: bool = False,
    output: int = 0,
    **attrs: Any,
) -> np.ndarray:
    """Run the op on both sides and compare; gives what the engine made."""
    arrays, weights = arrays_of(items)
    num_tokens = next(
        len(a) for a, w in zip(arrays, weights, strict=True) if a is not None and not w
    )
    found = run_op(folder, kind, arrays, weights, attrs, output)
    expected = reference(kind, arrays, attrs, step_of(num_tokens), output).reshape(num_tokens, -1)
    if exact:
        np.testing.assert_array_equal(found, expected)
    else:
        np.testing.assert_allclose(found, expected, rtol=3e-6, atol=1e-6)
    return found


@pytest.mark.parametrize("num", COUNTS)
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 64), (2, 3, 67), (576,)])
@pytest.mark.parametrize("function", ["rms", "layer"])
def test_norm(tmp_path: Path, function: str, shape: tuple[int, ...], num: int) -> None:
    x, size = normal(num, *shape) * 3 + 1, shape[-1]
    forms: list[list[Item]] = [
        [x],
        [x, Weight(normal(size))],
        [x, Weight(normal(size)), Weight(normal(size))],
        [x, None, Weight(normal(size))],
    ]
    for form in forms:
        check(tmp_path, "norm", form, function=function, eps=1e-6)


@pytest.mark.parametrize("num", COUNTS)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("shape", "half"), [((3, 64), 32), ((1, 22), 9), ((7,), 3), ((2, 5), 2)])
def test_rope(
    tmp_path: Path, shape: tuple[int, ...], half: int, interleaved: bool, num: int
) -> None:
    items: list[Item] = [normal(num, *shape), normal(num, half), normal(num, half)]
    check(tmp_path, "rope", items, interleaved=interleaved)


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_gated(tmp_path: Path, activation: str) -> None:
    for num in COUNTS:
        for shape in ((1,), (3, 37)):
            items: list[Item] = [normal(num, *shape) * 4, normal(num, *shape)]
            check(tmp_path, "gated", items, activation=activation)


@pytest.mark.parametrize("function", sorted(UNARY))
def test_unary(tmp_path: Path, function: str) -> None:
    x = normal(5, 3, 23) * 4
    x[0, 0, :4] = [-80.0, 80.0, 0.5, 2.5]  # far out, and halves
    if function in ("log", "sqrt", "rsqrt"):
        x = np.abs(x) + 1e-3
    if function in ("sin", "cos"):
        x[1] = RNG.random((3, 23)) * 1e6
    check(tmp_path, "unary", [x], function=function)
    check(tmp_path, "unary", [x[:1, 0, 0]], function=function)


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_unary_of_whole_numbers_and_truth(tmp_path: Path, dtype: type) -> None:
    for function in ("abs", "neg", "sign"):
        check(tmp_path, "unary", [whole(-9, 9, 5, 7, dtype=dtype)], function=function, exact=True)
    check(tmp_path, "unary", [truth(5, 7)], function="not", exact=True)


SHAPES = [((3, 37), (3, 37)), ((3, 1), (1, 7)), ((3, 7), (1, 1)), ((1, 7), (3, 1)), ((), ())]


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("function", sorted({**ARITHMETIC, **COMPARISONS}))
def test_binary(tmp_path: Path, function: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    a, b = normal(5, *shapes[0]), normal(5, *shapes[1])
    if function == "pow":
        a = np.abs(a) + np.float32(0.1)
    check(tmp_path, "binary", [a, b], function=function)
    check(tmp_path, "binary", [a, Weight(b[0])], function=function)
    if function != "pow":
        check(tmp_path, "binary", [Weight(b[0]), a], function=function)
    i, j = whole(-9, 9, *a.shape), whole(1, 5, *b.shape) * (1 if function == "pow" else -1)
    check(tmp_path, "binary", [i, j], function=function, exact=True)
    narrow: list[Item] = [i.astype(np.int32), j.astype(np.int32)]
    check(tmp_path, "binary", narrow, function=function, exact=True)


def test_binary_with_a_weight_of_fewer_axes(tmp_path: Path) -> None:
    for shape in ((7,), (1,), (3, 1), ()):
        check(tmp_path, "binary", [normal(5, 2, 3, 7), Weight(normal(*shape))], function="mul")


@pytest.mark.parametrize("function", [*sorted(LOGIC), "eq", "ne"])
def test_binary_of_truth(tmp_path: Path, function: str) -> None:
    check(tmp_path, "binary", [truth(5, 9), truth(5, 9)], function=function, exact=True)


def test_whole_numbers_divided_by_zero_and_at_their_ends(tmp_path: Path) -> None:
    a = np.array([[5, -5, 7, np.iinfo(np.int64).min, 0]])
    b = np.array([[0, 0, -2, -1, 3]])
    for function, expected in {
        "div": [0, 0, -3, np.iinfo(np.int64).min, 0],
        "mod": [0, 0, -1, 0, 0],
        "fmod": [0, 0, 1, 0, 0],
    }.items():
        found = run_op(tmp_path, "binary", [a, b], [False, False], {"function": function})
        np.testing.assert_array_equal(found[0], np.array(expected, np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.int32, np.bool_])
def test_where_gather_scatter_and_moves(tmp_path: Path, dtype: type) -> None:
    """Ops that only move elements, for elements of every size."""

    def made(*shape: int) -> np.ndarray:
        return truth(*shape) if dtype is np.bool_ else (normal(*shape) * 50).astype(dtype)

    def same(kind: str, items: list[Item], **attrs: Any) -> None:
        check(tmp_path, kind, items, exact=True, **attrs)

    same("where", [truth(5, 3, 7), made(5, 3, 1), Weight(made(7))])
    same("where", [Weight(truth(7)), made(5, 3, 7), made(5, 3, 7)])
    for axis, size in ((0, 4), (1, 5), (2, 2)):
        shape = [3, 4, 2]
        shape[axis] = size
        index = whole(0, [3, 4, 2][axis], 5, *shape, dtype=np.int32 if axis else np.int64)
        same("gather", [made(5, 3, 4, 2), index], axis=axis)
    index = np.stack([RNG.permutation(9)[:4] for _ in range(10)]).reshape(5, 2, 4)
    same("scatter", [made(5, 3, 9), index, made(5, 2, 4)], axis=1, function="set")
    same("scatter", [Weight(made(3, 9)), index, made(5, 2, 4)], axis=1, function="set")
    same("transpose", [made(5, 3, 4, 2)], perm=[2, 0, 1])
    same("transpose", [made(5, 3, 1, 2)], perm=[1, 0, 2])
    same("transpose", [made(1, 4, 3)], perm=[1, 0])
    same("expand", [made(5, 3, 1, 2, 1)], shape=[3, 4, 2, 5])
    same("expand", [made(5, 3)], shape=[3])
    same("reshape", [made(5, 3, 4)], shape=[2, 6])
    for axis, start, stop, step in (
        (0, 1, 3, 1),
        (1, 2, 5, 1),
        (1, 0, 5, 2),
        (2, 0, 4, 9),
        (0, 0, 3, 2),
    ):
        same("slice", [made(5, 3, 5, 4)], axis=axis, start=start, stop=stop, step=step)
    same("slice", [made(5, 1, 5, 4)], axis=1, start=1, stop=4, step=1)
    for axis in (0, 1):
        parts: list[Item] = [made(5, 2, 3), Weight(made(2, 3)), made(5, 2, 3)]
        same("concat", parts, axis=axis)
    same("concat", [made(5, 4)], axis=0)
    same("gather_rows", [made(5, 3, 4)])


def test_scatter_adds_what_meets(tmp_path: Path) -> None:
    index = whole(0, 3, 5, 2, 8)
    check(tmp_path, "scatter", [normal(5, 4, 3), index, normal(5, 2, 8)], axis=1, function="add")
    items: list[Item] = [whole(0, 9, 5, 4, 3), index, Weight(whole(0, 9, 2, 8))]
    check(tmp_path, "scatter", items, axis=1, function="add", exact=True)


def test_cast(tmp_path: Path) -> None:
    for x in (
        normal(5, 9) * 5,
        whole(-4, 4, 5, 9),
        whole(-4, 4, 5, 9, dtype=np.int32),
        truth(5, 9),
    ):
        for to in ("f32", "i64", "i32", "bool"):
            check(tmp_path, "cast", [x], to=to, exact=True)


def test_cast_of_what_no_whole_number_holds(tmp_path: Path) -> None:
    x = np.array([[3e9, -3e9, 1e30, -(2.0**31), 2.0**31]], np.float32)
    top = 2.0**31
    found = run_op(tmp_path, "cast", [x], [False], {"to": "i32"})
    np.testing.assert_array_equal(found[0], np.array([top, -top, top, -top, top], np.float32))


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 2), (2, 1, 0)])
@pytest.mark.parametrize("function", ["sum", "mean", "max", "min", "prod"])
def test_reduce(tmp_path: Path, function: str, axes: tuple[int, ...], keepdims: bool) -> None:
    attrs: dict[str, Any] = {"function": function, "axes": list(axes), "keepdims": keepdims}
    check(tmp_path, "reduce", [normal(5, 3, 7, 2)], **attrs)
    if function != "mean":
        check(tmp_path, "reduce", [whole(-3, 4, 5, 3, 7, 2)], exact=True, **attrs)


@pytest.mark.parametrize("num", COUNTS)
def test_softmax_and_cumsum(tmp_path: Path, num: int) -> None:
    for shape, axis in (((1,), 0), ((67,), 0), ((3, 5, 2), 1), ((3, 9), 1), ((3, 9), 0)):
        check(tmp_path, "softmax", [normal(num, *shape) * 9 + 200], axis=axis)
        quarters = np.round(normal(num, *shape) * 4) / 4  # whose sums no rounding touches
        check(tmp_path, "cumsum", [quarters], axis=axis, exact=True)
        check(tmp_path, "cumsum", [whole(-5, 5, num, *shape)], axis=axis, exact=True)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(
    ("shape", "axis", "k"), [((9,), 0, 1), ((3, 64), 1, 8), ((8, 3), 0, 8), ((200,), 0, 90)]
)
def test_topk(tmp_path: Path, shape: tuple[int, ...], axis: int, k: int, largest: bool) -> None:
    for x in (
        normal(5, *shape),
        whole(0, 4, 5, *shape),
        np.round(normal(5, *shape)),
    ):  # with equals
        for output in (0, 1):
            attrs = {"k": k, "axis": axis, "largest": largest}
            check(tmp_path, "topk", [x], exact=True, output=output, **attrs)


def test_matmul(tmp_path: Path) -> None:
    for a, b in (
        ((3, 7), (7, 5)),
        ((2, 1, 3, 4), (1, 5, 4, 37)),
        ((1, 1), (1, 1)),
        ((4, 2, 9), (1, 9, 16)),
    ):
        check(tmp_path, "matmul", [normal(5, *a), normal(5, *b)])
        check(tmp_path, "matmul", [normal(1, *a), Weight(normal(*b))])
    check(tmp_path, "matmul", [normal(5, 2, 3, 4), Weight(normal(4, 6))])


def spans_of(*sizes: int) -> tuple[Batch, np.ndarray]:
    """A step of several sequences, and the sequence of each token."""
    owners = np.repeat(np.arange(len(sizes)), sizes)
    starts = np.cumsum([0, *sizes])
    spans = tuple(Span(int(starts[i]), int(starts[i + 1]), (i,)) for i in range(len(sizes)))
    positions = np.concatenate([np.arange(size) for size in sizes])
    index = np.arange(len(owners))
    return Batch(index, positions, spans, index), owners


@pytest.mark.parametrize("function", ["max", "min"])
@pytest.mark.parametrize("x", [normal(6, 7), whole(-9, 9, 6, 7)], ids=["f32", "i64"])
def test_reduce_span(tmp_path: Path, function: str, x: np.ndarray) -> None:
    batch, owners = spans_of(3, 1, 2)
    program, tables = single_op("reduce_span", [x], [False], {"function": function}, 6)
    session = open_folder(write_folder(tmp_path, program, tables), threads=2)
    session.reserve(3)
    found = session.step(batch).logits
    session.close()
    step = Step(positions=batch.positions, owners=owners, slots=batch.positions, rows=batch.tokens)
    np.testing.assert_array_equal(
        found, reference("reduce_span", [x], {"function": function}, step)
    )


def test_rows_are_those_asked_for(tmp_path: Path) -> None:
    x = normal(6, 7)
    program, tables = single_op("gather_rows", [x], [False], {}, 6)
    session = open_folder(write_folder(tmp_path, program, tables))
    session.reserve(1)
    whole_step = one_span(6)
    for rows in ([4, 1, 1], [5], []):
        batch = Batch(
            whole_step.tokens, whole_step.positions, whole_step.spans, np.array(rows, int)
        )
        np.testing.assert_array_equal(session.step(batch).logits, x[rows])
    session.close()


@pytest.mark.parametrize("offset", [0, 2, -3])
def test_embed_adds_its_offset(tmp_path: Path, offset: int) -> None:
    tables = [normal(7, 5), whole(0, 99, 7, 5), truth(7, 5)]
    for table, dtype in zip(tables, ("f32", "i64", "bool"), strict=True):
        attrs = {"offset": offset, "dtype": dtype}
        ids = np.arange(7) - offset
        check(tmp_path, "embed", [Weight(table), ids], exact=True, **attrs)
        for outside in (-1 - offset, 7 - offset, np.iinfo(np.int64).min, np.iinfo(np.int64).max):
            arrays = [table, np.append(ids, outside)]
            with pytest.raises(RequestError, match=f"entry {outside}, which does not exist"):
                run_op(tmp_path, "embed", arrays, [True, False], attrs)


@pytest.mark.parametrize(
    ("kind", "items", "attrs"),
    [
        ("gather", [normal(2, 3), np.array([[0, 2], [3, 0]])], {"axis": 0}),
        ("gather", [normal(2, 3), np.array([[0, 2], [-1, 0]])], {"axis": 0}),
        ("scatter", [normal(2, 3), np.array([[0, 2], [9, 0]]), normal(2, 2)], {"axis": 0}),
    ],
)
def test_an_index_outside_is_the_requests_error(
    tmp_path: Path, kind: str, items: list[np.ndarray], attrs: dict[str, Any]
) -> None:
    with pytest.raises(RequestError, match="does not exist"):
        run_op(tmp_path, kind, items, [False] * len(items), attrs)
