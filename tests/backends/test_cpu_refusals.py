"""Programs that break the rules of an op kind: the native engine refuses them by itself.

The Python side validates too; here its check is left out, as a caller of the C API leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_folder import open_folder, single_op, write_folder

from qeff.container.program import Op, Program, Value
from qeff.core.errors import ContainerError
from qeff.ops import kinds

F = np.zeros((2, 3, 4), np.float32)
W = np.zeros((2, 3, 4), np.int64)
B = np.zeros((2, 3, 4), np.bool_)
V = np.zeros((2, 4), np.float32)
BIG = 1 << 40
MATRIX_READERS = ("embed", "linear", "moe")

# Of each kind its inputs, the places of those that are weights, and its attributes.
EXAMPLES: dict[str, tuple[list[np.ndarray], tuple[int, ...], dict[str, Any]]] = {
    "binary": ([F, F], (), {"function": "add"}),
    "cast": ([F], (), {"to": "i64"}),
    "concat": ([F, F], (), {"axis": 1}),
    "cumsum": ([F], (), {"axis": 1}),
    "embed": ([F[0], W[:, 0, 0]], (0,), {}),
    "expand": ([F[:, :1]], (), {"shape": [5, 4]}),
    "gated": ([F, F], (), {"activation": "silu"}),
    "gather": ([F, W], (), {"axis": 0}),
    "gather_rows": ([F], (), {}),
    "linear": ([F, F[0], F[0, 0, :3]], (1, 2), {}),
    "matmul": ([F, np.zeros((2, 4, 5), np.float32)], (), {}),
    "moe": (
        [
            V,
            W[:, 0, :2],
            V[:, :2],
            np.zeros((3, 10, 4), np.float32),
            np.zeros((3, 7, 5), np.float32),
        ],
        (3, 4),
        {},
    ),
    "norm": ([F, F[0, 0]], (1,), {"function": "rms"}),
    "reduce": ([F], (), {"function": "sum", "axes": [1]}),
    "reduce_span": ([F], (), {"function": "max"}),
    "reshape": ([F], (), {"shape": [6, 2]}),
    "rope": ([F, V[:, :2], V[:, :2]], (), {}),
    "scatter": ([F, W, F], (), {"axis": 0}),
    "slice": ([F], (), {"axis": 0, "start": 0, "stop": 2}),
    "softmax": ([F], (), {"axis": 0}),
    "topk": ([F], (), {"k": 2, "axis": 1}),
    "transpose": ([F], (), {"perm": [1, 0]}),
    "unary": ([F], (), {"function": "exp"}),
    "where": ([B, F, F], (), {}),
}


def test_every_kind_has_an_example() -> None:
    assert {*EXAMPLES, "attention"} == set(kinds())  # attention has tests of its own


def example(kind: str) -> tuple[Program, dict[str, np.ndarray], int]:
    """A program with the op, its weights, and the op's place."""
    inputs, places, attrs = EXAMPLES[kind]
    weights = [i in places for i in range(len(inputs))]
    program, tables = single_op(kind, inputs, weights, attrs, 2)
    return program, tables, next(i for i, op in enumerate(program.ops) if op.name == "tested")


def with_op(program: Program, place: int, **changes: Any) -> Program:
    ops = list(program.ops)
    ops[place] = replace(ops[place], **changes)
    return replace(program, ops=tuple(ops))


def with_value(program: Program, index: int, **changes: Any) -> Program:
    values = list(program.values)
    values[index] = replace(values[index], **changes)
    return replace(program, values=tuple(values))


def refuse(folder: Path, program: Program, tables: dict[str, np.ndarray]) -> None:
    write_folder(folder, program, tables)
    with pytest.raises(ContainerError):
        open_folder(folder)


def longer(program: Program, place: int) -> Program:
    output = program.ops[place].outputs[0]
    return with_value(program, output, shape=(*program.values[output].shape, 2))


def other_size(program: Program, place: int) -> Program:
    output = program.ops[place].outputs[0]
    shape = program.values[output].shape
    return with_value(program, output, shape=(shape[0] + 1, *shape[1:]))


def other_dtype(program: Program, place: int) -> Program:
    output = program.ops[place].outputs[0]
    dtype = "i32" if program.values[output].dtype != "i32" else "f32"
    return with_value(program, output, dtype=dtype)


def other_kind(program: Program, place: int) -> Program:
    output = program.ops[place].outputs[0]
    kind = "row" if program.values[output].kind == "token" else "token"
    return with_value(program, output, kind=kind)


def one_input_less(program: Program, place: int) -> Program:
    return with_op(program, place, inputs=(-1, *program.ops[place].inputs[1:]))


def no_inputs(program: Program, place: int) -> Program:
    return with_op(program, place, inputs=())


def no_outputs(program: Program, place: int) -> Program:
    return with_op(program, place, outputs=())


def tokens_as_input(program: Program, place: int) -> Program:
    """Whole numbers without axes in the place of the first input."""
    return with_op(program, place, inputs=(program.tokens, *program.ops[place].inputs[1:]))


def weight_of_the_wrong_kind(program: Program, place: int) -> Program:
    """A table in panels in the place of the first input."""
    table = next(i for i, v in enumerate(program.values) if v.kind == "weight" and v.dtype == "f32")
    return with_op(program, place, inputs=(table, *program.ops[place].inputs[1:]))


GENERAL = [longer, other_size, other_dtype, other_kind, one_input_less, no_inputs, no_outputs,
           tokens_as_input, weight_of_the_wrong_kind]  # fmt: skip


@pytest.mark.parametrize("kind", sorted(EXAMPLES))
@pytest.mark.parametrize("change", GENERAL)
def test_what_no_op_may_be(
    tmp_path: Path, change: Callable[[Program, int], Program], kind: str
) -> None:
    program, tables, place = example(kind)
    open_folder(write_folder(tmp_path / "right", program, tables)).close()
    if kind in MATRIX_READERS and change in (weight_of_the_wrong_kind, no_inputs):
        change = one_input_less  # they take tables, and the folder is written by their inputs
    refuse(tmp_path / "wrong", change(program, place), tables)


@pytest.mark.parametrize("kind", sorted(EXAMPLES))
def test_an_unknown_attribute(tmp_path: Path, kind: str) -> None:
    program, tables, place = example(kind)
    wrong = {**program.ops[place].attrs, "unheard": 1}
    refuse(tmp_path, with_op(program, place, attrs=wrong), tables)


@pytest.mark.parametrize("kind", sorted(EXAMPLES))
def test_attributes_are_there_and_of_their_type(tmp_path: Path, kind: str) -> None:
    program, tables, place = example(kind)
    attrs = program.ops[place].attrs
    for name in attrs:
        rest = {key: value for key, value in attrs.items() if key != name}
        for wrong in (rest, {**rest, name: {}}, {**rest, name: None}, {**rest, name: "none such"}):
            refuse(tmp_path, with_op(program, place, attrs=wrong), tables)


@pytest.mark.parametrize(
    ("kind", "attrs"),
    [
        ("concat", {"axis": 2}),
        ("concat", {"axis": -1}),
        ("cumsum", {"axis": BIG}),
        ("expand", {"shape": [5, 3]}),
        ("expand", {"shape": [-5, -4]}),
        ("gather", {"axis": 2}),
        ("moe", {"limit": -1.0}),
        ("moe", {"gate": "none"}),
        ("moe", {"transposed": True}),
        ("norm", {"eps": -1.0}),
        ("norm", {"eps": 1e300}),
        ("reduce", {"axes": []}),
        ("reduce", {"axes": [1, 1]}),
        ("reduce", {"axes": [2]}),
        ("reduce", {"axes": [-1]}),
        ("reshape", {"shape": [-6, -2]}),
        ("reshape", {"shape": [BIG, BIG]}),
        ("scatter", {"axis": -BIG}),
        ("slice", {"start": 3, "stop": 2}),
        ("slice", {"start": -1, "stop": 1}),
        ("slice", {"stop": BIG}),
        ("slice", {"step": 0}),
        ("slice", {"step": -1}),
        ("topk", {"k": 5}),
        ("topk", {"k": -1}),
        ("transpose", {"perm": [0, 0]}),
        ("transpose", {"perm": [0]}),
        ("transpose", {"perm": [0, 2]}),
        ("transpose", {"perm": [-1, 0]}),
        ("unary", {"function": "not"}),
        ("binary", {"function": "and"}),
    ],
)
def test_attributes_outside_their_range(tmp_path: Path, kind: str, attrs: dict[str, Any]) -> None:
    program, tables, place = example(kind)
    wrong = {**program.ops[place].attrs, **attrs}
    refuse(tmp_path, with_op(program, place, attrs=wrong), tables)


@pytest.mark.parametrize("axes", [(BIG, BIG), (0, BIG, BIG), (BIG, 0, BIG), (BIG, BIG, 0)])
def test_sizes_that_no_number_holds(tmp_path: Path, axes: tuple[int, ...]) -> None:
    """An empty value may have axes whose product passes every limit."""
    program, tables, place = example("expand")
    source = program.ops[place].inputs[0]
    shape = tuple(0 if axis == 0 else 1 for axis in axes)
    program = with_value(program, source, shape=shape)
    program = with_value(program, program.ops[place].outputs[0], shape=axes)
    refuse(tmp_path, with_op(program, place, attrs={"shape": list(axes)}), tables)


def test_experts_that_are_also_a_table(tmp_path: Path) -> None:
    """A table is one matrix, so that it takes fewer bytes than a stack of the same shape."""
    inputs, _, attrs = EXAMPLES["moe"]
    up, down = np.zeros((32, 2, 4), np.float32), np.zeros((32, 7, 1), np.float32)
    weights = [False, False, False, True, True]
    program, tables = single_op("moe", [*inputs[:3], up, down], weights, attrs, 2)
    open_folder(write_folder(tmp_path / "right", program, tables)).close()
    index = next(i for i, value in enumerate(program.values) if value.name == "in3")
    made = Value("looked up", "token", (2, 4), "f32")
    look_up = Op(
        "embed", "table", (index, 0), (len(program.values),), {"offset": 0, "dtype": "f32"}
    )
    program = replace(program, values=(*program.values, made), ops=(look_up, *program.ops))
    tables["in3"] = np.zeros(32 // 16 * 16 * 8 * 4, np.uint8)  # as a table of 8 columns
    refuse(tmp_path / "wrong", program, tables)
