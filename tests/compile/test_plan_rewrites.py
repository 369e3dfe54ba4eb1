"""The rewrites of a draft, each where it applies and where it must not."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qeff.compile.plan.draft import Draft
from qeff.compile.plan.fuse import activation, bias, gate, offset, rows, slices
from qeff.container.program import Value
from qeff.core.spec import CacheLayer
from qeff.ops import validate


class Sketch:
    """A draft with a token value of 8 features, and shorthand to add to it."""

    def __init__(self) -> None:
        self.draft = Draft()
        self.draft.tokens = self.draft.add_value(Value("tokens", "token", (), "i64"))
        self.draft.positions = self.draft.add_value(Value("positions", "token", (), "i64"))
        self.x = self.op("embed", self.weight("table", 11, 8), self.draft.tokens)

    def weight(self, name: str, *shape: int) -> int:
        return self.draft.add_weight(name, ir.tensor(np.ones(shape, np.float32)), "f32")

    def op(self, kind: str, *inputs: int, **attrs: object) -> int:
        return self.draft.add_op(kind, f"{kind}{len(self.draft.ops)}", inputs, attrs)[0]

    def kinds(self, *results: int) -> list[str]:
        """The kinds of the ops that a result is made of."""
        joined = self.op("concat", *results, axis=0) if len(results) > 1 else results[0]
        self.draft.logits = joined
        rows.fuse(self.draft)
        kept = [op.kind for op in self.draft.finish().ops]
        return [kind for kind in kept if kind not in ("embed", "gather_rows", "concat")]


def test_bias() -> None:
    s = Sketch()
    y = s.op("linear", s.x, s.weight("w", 5, 8))
    z = s.op("binary", s.weight("b", 5), y, function="add")
    assert bias.fuse(s.draft).applied == 1
    assert s.kinds(z) == ["linear"]
    assert len(s.draft.ops[-1].inputs) == 3


@pytest.mark.parametrize("why", ["used without", "bias already", "no vector"])
def test_bias_declines(why: str) -> None:
    s = Sketch()
    inputs = [s.x, s.weight("w", 5, 8)] + ([s.weight("b0", 5)] if why == "bias already" else [])
    y = s.op("linear", *inputs)
    z = s.op("binary", y, s.weight("b", *(() if why == "no vector" else (5,))), function="add")
    s.draft.logits = s.op("concat", y, z, axis=0) if why == "used without" else z
    outcome = bias.fuse(s.draft)
    assert outcome.applied == 0 and why in outcome.declined[0]


def test_silu_relu2_and_gates_are_found() -> None:
    s = Sketch()
    up = s.op("linear", s.x, s.weight("w", 8, 8))
    silu = s.op("binary", s.op("unary", s.x, function="sigmoid"), s.x, function="mul")
    first = s.op("binary", up, silu, function="mul")
    second = s.op("unary", s.op("unary", up, function="relu"), function="square")
    for rewrite in (activation, gate):
        rewrite.fuse(s.draft)
    assert s.kinds(first, second) == ["linear", "gated", "unary"]
    found = [op.attrs for op in s.draft.ops if op.kind in ("gated", "unary")]
    assert {"activation": "silu"} in found and {"function": "relu2"} in found


@pytest.mark.parametrize("why", ["used elsewhere", "a weight", "differ in shape"])
def test_a_gate_declines(why: str) -> None:
    s = Sketch()
    act = s.op("unary", s.x, function="silu")
    if why == "a weight":
        other = s.weight("scale", 8)
    elif why == "differ in shape":
        other = s.op("slice", s.x, axis=0, start=0, stop=1)
    else:
        other = s.op("unary", s.x, function="exp")
    y = s.op("binary", act, other, function="mul")
    s.draft.logits = s.op("concat", y, act, axis=0) if why == "used elsewhere" else y
    outcome = gate.fuse(s.draft)
    assert outcome.applied == 0 and any(why in reason for reason in outcome.declined)


def test_an_offset_goes_into_the_lookup() -> None:
    s = Sketch()
    two = s.draft.add_weight("two", ir.tensor(np.asarray(2)), "i64")
    place = s.op("binary", s.draft.positions, two, function="add")
    y = s.op("embed", s.weight("positions.weight", 9, 8), place)
    assert offset.fuse(s.draft).applied == 1
    assert s.kinds(y) == []
    assert [op.attrs["offset"] for op in s.draft.ops if op.kind == "embed"] == [0, 2]


def test_slices_of_joined_values() -> None:
    s = Sketch()
    other = s.op("unary", s.x, function="exp")
    joined = s.op("concat", s.x, other, axis=0)
    whole = s.op("slice", joined, axis=0, start=8, stop=16)
    part = s.op("slice", joined, axis=0, start=2, stop=5)
    both = s.op("slice", joined, axis=0, start=6, stop=10)
    turned = s.op("unary", whole, function="neg")
    outcome = slices.fuse(s.draft)
    assert outcome.applied == 2 and len(outcome.declined) == 1
    assert s.kinds(turned, part, both).count("slice") == 2


def of_rows(s: Sketch) -> dict[str, str]:
    """Token or row, for each op of the finished program that is no gathering."""
    rows.fuse(s.draft)
    program = s.draft.finish()
    validate(program)
    made = {op.name: program.values[op.outputs[0]].kind for op in program.ops}
    return {name: kind for name, kind in made.items() if not name.endswith("/rows")}


def attend(s: Sketch, query: int, key: int, cache: int) -> int:
    """An attention of two heads that writes its own cache."""
    heads = [s.op("reshape", x, shape=(2, 4)) for x in (query, key)]
    s.draft.caches.append(CacheLayer(cache, 2, 4, 4))
    attrs = {"cache": cache, "value_dim": 4, "scale": 1.0}
    y = s.op("attention", heads[0], heads[1], heads[1], -1, -1, **attrs)
    return s.op("reshape", y, shape=(8,))


def test_the_last_layer_is_for_rows_but_for_its_keys() -> None:
    s = Sketch()
    query = s.op("linear", s.x, s.weight("q", 8, 8))
    key = s.op("linear", s.x, s.weight("k", 8, 8))
    s.draft.logits = s.op("binary", attend(s, query, key, 0), s.x, function="add")
    found = of_rows(s)
    assert found == {
        "embed0": "token", "linear2": "token", "reshape4": "token", "linear1": "row",
        "reshape3": "row", "attention5": "row", "reshape6": "row", "binary7": "row",
    }  # fmt: skip


def test_a_layer_below_another_runs_on_every_token() -> None:
    s = Sketch()
    low = attend(s, s.x, s.x, 0)
    s.draft.logits = attend(s, low, low, 1)
    found = of_rows(s)
    attentions = [kind for name, kind in found.items() if name.startswith("attention")]
    assert attentions == ["token", "row"]


def test_layers_whose_keys_come_from_below_run_on_rows() -> None:
    s = Sketch()
    shared = attend(s, s.x, s.x, 0)
    x = shared
    for cache in (1, 2, 3):
        key = s.op("linear", shared, s.weight(f"k{cache}", 8, 8))
        x = s.op("unary", attend(s, x, key, cache), function="silu")
    s.draft.logits = x
    found = of_rows(s)
    attentions = [kind for name, kind in found.items() if name.startswith("attention")]
    assert attentions == ["token", "row", "row", "row"]
    assert {kind for name, kind in found.items() if name.startswith("linear")} == {"token"}
    assert {kind for name, kind in found.items() if name.startswith("unary")} == {"row"}


def test_an_op_that_looks_at_neighbours_needs_every_token() -> None:
    s = Sketch()
    wide = s.op("unary", s.x, function="exp")
    most = s.op("reduce_span", wide, function="max")
    s.draft.logits = s.op("binary", most, s.op("unary", s.x, function="neg"), function="add")
    assert of_rows(s) == {
        "embed0": "token", "unary1": "token", "reduce_span2": "token", "unary3": "row",
        "binary4": "row",
    }  # fmt: skip
