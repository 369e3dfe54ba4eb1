"""Parts of computed constants: equal to parts of the whole, with nothing else read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qeff.compile.passes.fold import values_of
from qeff.compile.plan.constants import Constants
from qeff.compile.plan.cutting import can_cut, read_cut

F32 = ir.DataType.FLOAT
EXPERTS, ROWS, COLS = 3, 20, 30


def stored(name: str, array: np.ndarray) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    kind = ir.TensorType(tensor.dtype)
    return ir.Value(name=name, shape=tensor.shape, type=kind, const_value=tensor)


def op(kind: str, inputs: Sequence[ir.Value], shape: Sequence[int], **attrs: Any) -> ir.Value:
    value = ir.node(kind, inputs, attrs).outputs[0]
    value.name, value.shape, value.type = kind, ir.Shape(shape), ir.TensorType(F32)
    return value


def experts() -> tuple[ir.Value, np.ndarray]:
    """Gates and ups of single experts, stacked and joined, as checkpoints of experts are."""
    rng = np.random.default_rng(0)
    whole = rng.standard_normal((EXPERTS, 2 * ROWS, COLS)).astype(np.float32)
    lead = stored("lead", np.array([1, ROWS, COLS]))
    halves = []
    for half in range(2):
        parts = [whole[e, half * ROWS : (half + 1) * ROWS] for e in range(EXPERTS)]
        leaves = [stored(f"{half}.{e}", part) for e, part in enumerate(parts)]
        stacked = [op("Reshape", [leaf, lead], [1, ROWS, COLS]) for leaf in leaves]
        halves.append(op("Concat", stacked, [EXPERTS, ROWS, COLS], axis=0))
    return op("Concat", halves, [EXPERTS, 2 * ROWS, COLS], axis=1), whole


def tensor_of(value: ir.Value) -> ir.TensorProtocol:
    found = Constants().find(value)
    assert found is not None
    return found.tensor


@given(
    expert=st.integers(0, EXPERTS - 1), start=st.integers(0, 2 * ROWS - 1), count=st.integers(1, 40)
)
def test_rows_of_an_expert_are_those_of_the_whole(expert: int, start: int, count: int) -> None:
    value, whole = experts()
    tensor = tensor_of(value)
    np.testing.assert_array_equal(values_of(tensor), whole)
    assert can_cut(tensor)
    stop = min(start + count, 2 * ROWS)
    found = read_cut(tensor, ((expert, expert + 1), (start, stop), (0, COLS)))
    np.testing.assert_array_equal(found, whole[expert : expert + 1, start:stop])


def test_a_turned_stack_is_cut_along_its_own_axes() -> None:
    value, whole = experts()
    turned = op("Transpose", [value], [EXPERTS, COLS, 2 * ROWS], perm=[0, 2, 1])
    found = read_cut(tensor_of(turned), ((1, 2), (4, 9), (15, 33)))
    np.testing.assert_array_equal(found, whole.transpose(0, 2, 1)[1:2, 4:9, 15:33])


def test_a_cast_is_of_the_part() -> None:
    value = stored("half", np.arange(3000, dtype=np.float16).reshape(60, 50))
    found = read_cut(tensor_of(op("Cast", [value], [60, 50], to=int(F32))), ((7, 9), (0, 50)))
    assert found.dtype == np.float32 and found[0, 0] == 350


@pytest.mark.parametrize("kind", ["Reshape", "Mul"])
def test_what_mixes_values_is_not_cut(kind: str) -> None:
    value = stored("w", np.ones((60, 50), np.float32))
    other = stored("o", np.array([50, 60]) if kind == "Reshape" else np.ones(50, np.float32))
    shape = [50, 60] if kind == "Reshape" else [60, 50]
    assert not can_cut(tensor_of(op(kind, [value, other], shape)))
