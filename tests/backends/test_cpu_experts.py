"""moe on the native engine: against the reference, and a token's result whatever else is there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_folder import one_span, open_folder, run_op, single_op, write_folder

from qeff._native import load
from qeff.compile.panels import pack_panels, unpack_panels
from qeff.container.program import Op, Program, Value
from qeff.core.errors import RequestError
from qeff.ops import Step, kinds
from qeff.ops.functions import ACTIVATIONS
from qeff.runtime.session import Batch

RNG = np.random.default_rng(6)
START = RNG.bit_generator.state
WEIGHTS = [False, False, False, True, True, True, True]
EXPERTS, FEATURES, HIDDEN, OUT, CHOSEN = 6, 37, 22, 19, 3


@pytest.fixture(autouse=True, params=load().isas())
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("QEFF_ISA", request.param)
    RNG.bit_generator.state = START  # a test's numbers do not depend on the tests before it
    return str(request.param)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def inputs_for(num: int, gate: str, has_bias: bool, hidden: int = HIDDEN) -> list[Any]:
    up_out = hidden if gate == "none" else 2 * hidden
    index = np.stack([RNG.permutation(EXPERTS)[:CHOSEN] for _ in range(num)])
    biases = [normal(EXPERTS, up_out), normal(EXPERTS, OUT)] if has_bias else [None, None]
    up, down = normal(EXPERTS, up_out, FEATURES) / 6, normal(EXPERTS, OUT, hidden) / 5
    return [normal(num, FEATURES), index, normal(num, CHOSEN), up, down, *biases]


def expected(inputs: list[Any], attrs: dict[str, Any]) -> np.ndarray:
    index = np.arange(len(inputs[0]))
    step = Step(positions=index, owners=index, slots=index, rows=index)
    kind = kinds()["moe"]
    return kind.reference(inputs, kind.complete(attrs), step)[0]


@pytest.mark.parametrize("num", [1, 9])
@pytest.mark.parametrize("gate", ["half", "interleaved", "none"])
@pytest.mark.parametrize("activation", [*sorted(ACTIVATIONS), "swiglu_clamped"])
def test_moe(tmp_path: Path, activation: str, gate: str, num: int) -> None:
    if activation == "swiglu_clamped" and gate == "none":
        gate = "interleaved"  # this activation has no form without a gate
    attrs = {"activation": activation, "gate": gate, "alpha": 1.5, "limit": 2.0}
    for has_bias in (False, True):
        inputs = inputs_for(num, gate, has_bias)
        found = run_op(tmp_path, "moe", inputs, WEIGHTS, attrs)
        np.testing.assert_allclose(found, expected(inputs, attrs), rtol=1e-5, atol=1e-5)


def packed(form: str, inputs: list[Any]) -> tuple[Program, dict[str, np.ndarray]]:
    """The op with both matrices packed; its inputs get what the packed matrices stand for."""
    program, tables = single_op("moe", inputs, WEIGHTS, {}, len(inputs[0]))
    values = list(program.values)
    for i in (3, 4):
        name = f"in{i}"
        place = next(at for at, value in enumerate(values) if value.name == name)
        values[place] = replace(values[place], dtype=form)
        panels = pack_panels(inputs[i], form)
        inputs[i] = unpack_panels(panels, form, inputs[i].shape)
        tables[name] = panels
    return replace(program, values=tuple(values)), tables


@pytest.mark.parametrize("form", ["f16", "q8_0", "q4_0", "mxfp4", "mxfp8"])
def test_packed_experts_and_tokens_by_themselves(tmp_path: Path, form: str) -> None:
    inputs = inputs_for(9, "half", True, hidden=35)
    inputs[1][4] = inputs[1][3]  # two tokens with the same experts
    program, tables = packed(form, inputs)
    session = open_folder(write_folder(tmp_path, program, tables), threads=2)
    session.reserve(1)
    together = session.step(one_span(9)).logits
    theirs = expected(inputs, {})
    error = np.linalg.norm(together - theirs) / np.linalg.norm(theirs)
    assert error < (2e-2 if form not in ("f16", "mxfp8") else 1e-5)
    one = one_span(1)
    for token in range(9):  # the positions do not matter here
        alone = session.step(replace(one, tokens=np.array([token]))).logits
        np.testing.assert_array_equal(alone[0], together[token])
    session.close()


def on_rows(program: Program) -> Program:
    """The same op behind gather_rows instead of before it."""
    values, ops = list(program.values), []
    rows: dict[int, int] = {}
    place = next(i for i, op in enumerate(program.ops) if op.name == "tested")
    tested = program.ops[place]
    for i in tested.inputs:
        if i >= 0 and values[i].kind == "token":
            rows[i] = len(values)
            values.append(Value(f"{values[i].name}_rows", "row", values[i].shape, values[i].dtype))
            ops.append(Op("gather_rows", f"rows{i}", (i,), (rows[i],), {}))
    moved = replace(tested, inputs=tuple(rows.get(i, i) for i in tested.inputs))
    values[tested.outputs[0]] = replace(values[tested.outputs[0]], kind="row")
    return replace(
        program,
        values=tuple(values),
        ops=(*program.ops[:place], *ops, moved),
        logits=tested.outputs[0],
    )


def test_moe_on_rows(tmp_path: Path) -> None:
    inputs = inputs_for(7, "half", True)
    program, tables = single_op("moe", inputs, WEIGHTS, {}, 7)
    session = open_folder(write_folder(tmp_path, on_rows(program), tables), threads=2)
    session.reserve(1)
    theirs, step = expected(inputs, {}), one_span(7)
    for rows in ([6], [2, 0, 2], []):
        batch = Batch(step.tokens, step.positions, step.spans, np.array(rows, int))
        np.testing.assert_allclose(session.step(batch).logits, theirs[rows], rtol=1e-5, atol=1e-5)
    session.close()


@pytest.mark.parametrize("bad", [-1, EXPERTS, 1 << 40])
def test_an_expert_that_does_not_exist(tmp_path: Path, bad: int) -> None:
    inputs = inputs_for(3, "half", False)
    inputs[1][1, 1] = bad
    with pytest.raises(RequestError, match=f"entry {bad},"):
        run_op(tmp_path, "moe", inputs, WEIGHTS, {})
