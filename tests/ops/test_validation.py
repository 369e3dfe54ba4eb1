"""A program that is damaged or lies is refused with a ContainerError, and with nothing else."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest

from qeff.container.program import Op, Program, Value
from qeff.core.errors import ContainerError
from qeff.core.spec import CacheLayer
from qeff.ops import Arg, kinds, validate


def tiny_program() -> Program:
    """embed, rope, attention, norm, linear: a decoder of one layer without an MLP."""
    values: list[Value] = []

    def value(name: str, kind: str, shape: tuple[int, ...], dtype: str = "f32") -> int:
        values.append(Value(name, kind, shape, dtype))
        return len(values) - 1

    tokens, positions = value("tokens", "token", (), "i64"), value("positions", "token", (), "i64")
    table, freq = value("table", "weight", (11, 8), "bf16"), value("freq", "weight", (2,))
    real, lifted = value("real", "token", ()), value("lifted", "token", (1,))
    angle = value("angle", "token", (2,))
    cos, sin = value("cos", "token", (2,)), value("sin", "token", (2,))
    x, heads = value("x", "token", (8,)), value("heads", "token", (2, 4))
    q, y = value("q", "token", (2, 4)), value("y", "token", (2, 4))
    row, flat = value("row", "row", (2, 4)), value("flat", "row", (8,))
    h, logits = value("h", "row", (8,)), value("logits", "row", (11,))
    scale = value("scale", "weight", (8,))
    attention = {"cache": 0, "value_dim": 4, "scale": 0.5, "window": 3}
    ops = (
        Op("embed", "embed", (table, tokens), (x,)),
        Op("cast", "real", (positions,), (real,), {"to": "f32"}),
        Op("reshape", "lift", (real,), (lifted,), {"shape": [1]}),
        Op("binary", "angle", (lifted, freq), (angle,), {"function": "mul"}),
        Op("unary", "cos", (angle,), (cos,), {"function": "cos"}),
        Op("unary", "sin", (angle,), (sin,), {"function": "sin"}),
        Op("reshape", "heads", (x,), (heads,), {"shape": [2, 4]}),
        Op("rope", "rope", (heads, cos, sin), (q,), {"interleaved": True}),
        Op("attention", "attention", (q, q, heads, -1, -1), (y,), attention),
        Op("gather_rows", "rows", (y,), (row,)),
        Op("reshape", "flat", (row,), (flat,), {"shape": [8]}),
        Op("norm", "norm", (flat, scale), (h,), {"function": "rms", "eps": 1e-6}),
        Op("linear", "head", (h, table), (logits,), {"transposed": False}),
    )
    return Program(tuple(values), ops, (CacheLayer(0, 2, 4, 4),), tokens, positions, logits)


def as_json() -> dict[str, Any]:
    return json.loads(json.dumps(tiny_program().to_json()))


def refuse(data: Any, match: str | None = None) -> None:
    with pytest.raises(ContainerError, match=match):
        validate(Program.from_json(data))


def test_a_sound_program_passes_and_survives_json() -> None:
    program = Program.from_json(as_json())
    validate(program)
    assert program.to_json() == as_json()


VALUES = [value.name for value in tiny_program().values]
OPS = [op.name for op in tiny_program().ops]


@pytest.mark.parametrize("name", VALUES)
def test_every_declared_shape_counts(name: str) -> None:
    data = as_json()
    data["values"][VALUES.index(name)][2] += [3]
    refuse(data)


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("dtype", ["i32", "bool"])
def test_every_declared_dtype_counts(name: str, dtype: str) -> None:
    data = as_json()
    data["values"][VALUES.index(name)][3] = dtype
    refuse(data)


@pytest.mark.parametrize("name", OPS)
def test_every_attribute_must_be_known(name: str) -> None:
    data = as_json()
    data["ops"][OPS.index(name)][4]["colour"] = 1
    refuse(data, "colour")


@pytest.mark.parametrize(
    ("op", "attribute", "bad"),
    [
        ("attention", "cache", 1),
        ("attention", "cache", "0"),
        ("attention", "window", True),
        ("attention", "scale", "nan"),
        ("norm", "eps", -1.0),
        ("norm", "function", "batch"),
        ("heads", "shape", [2, -4]),
        ("heads", "shape", [2.0, 4.0]),
        ("angle", "function", "and"),
        ("real", "to", "f8"),
        ("head", "transposed", 0),
    ],
)
def test_bad_attributes(op: str, attribute: str, bad: Any) -> None:
    data = as_json()
    data["ops"][OPS.index(op)][4][attribute] = bad
    refuse(data)


@pytest.mark.parametrize("key", ["tokens", "positions", "logits"])
@pytest.mark.parametrize("index", [-1, 2, 99])
def test_the_border_must_be_what_a_session_fills(key: str, index: int) -> None:
    data = as_json()
    data[key] = index
    refuse(data)


def test_a_cache_that_nothing_wrote_is_not_read() -> None:
    data = as_json()
    data["ops"][OPS.index("attention")][2][1:3] = [-1, -1]
    refuse(data, "before it is written")


def test_a_cache_of_other_sizes_is_refused() -> None:
    for key in ("num_kv_heads", "key_dim", "value_dim"):
        data = as_json()
        data["caches"][0][key] = 3
        refuse(data)


def test_sizes_have_a_limit() -> None:
    data = as_json()
    data["values"][VALUES.index("x")][2] = [1 << 40]
    refuse(data, "too large")


def test_an_unknown_kind_is_named() -> None:
    data = as_json()
    data["ops"][0][0] = "teleport"
    refuse(data, "teleport")


JUNK: list[Any] = [
    None, True, -1, 0, 7, 1 << 70, 1e308, float("inf"), float("nan"), -0.5, "", "token", "f32",
    [], [0], [[]], {}, {"a": 1},
]  # fmt: skip


def mutate(data: Any, rng: random.Random) -> None:
    """Change, drop, copy or swap one thing somewhere."""
    spots: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        keys = range(len(node)) if isinstance(node, list) else list(node)
        for key in keys:
            spots.append((node, key))
            if isinstance(node[key], list | dict):
                walk(node[key])

    walk(data)
    node, key = rng.choice(spots)
    other, at = rng.choice(spots)
    action = rng.randrange(4)
    if action == 0:
        node[key] = copy.deepcopy(rng.choice(JUNK))
    elif action == 1:
        del node[key]
    elif action == 2:
        node[key] = copy.deepcopy(other[at])
    elif isinstance(node, list):
        node.insert(key, copy.deepcopy(other[at]))


@pytest.mark.parametrize("seed", range(20))
def test_no_damage_raises_anything_but_a_container_error(seed: int) -> None:
    rng = random.Random(seed)
    refused = 0
    for _ in range(150):
        data = as_json()
        for _ in range(rng.randint(1, 3)):
            mutate(data, rng)
        try:
            validate(Program.from_json(data))
        except ContainerError:
            refused += 1
    assert refused > 75  # some damage does no harm: names, attributes within their range


def test_every_kind_is_documented() -> None:
    for name, kind in kinds().items():
        assert kind.summary, name


def with_dtype(name: str, dtype: str) -> dict[str, Any]:
    data = as_json()
    for row in data["values"]:
        if row[0] == name:
            row[3] = dtype
    return data


@pytest.mark.parametrize("dtype", ["q8_0", "q4_0", "q4_1", "mxfp4", "mxfp6", "mxfp8"])
def test_a_table_and_a_matrix_may_be_packed(dtype: str) -> None:
    validate(Program.from_json(with_dtype("table", dtype)))


@pytest.mark.parametrize("name", ["scale", "freq", "x", "q", "h", "logits", "tokens"])
def test_nothing_else_may_be_packed(name: str) -> None:
    refuse(with_dtype(name, "q8_0"))


def test_long_blocks_must_be_whole() -> None:
    refuse(with_dtype("table", "q4_k"), "blocks of 256")
    refuse(with_dtype("table", "q5_k"), "q5_k")


def test_a_packed_matrix_is_never_transposed() -> None:
    data = with_dtype("table", "q8_0")
    data["ops"][-1][4]["transposed"] = True
    refuse(data, "transposed")


def test_packed_weights_cost_what_they_take() -> None:
    args = [Arg("token", (64,), "f32"), Arg("weight", (10, 64), "q4_0")]
    cost = kinds()["linear"].cost(args, {}, num_tokens=3)
    assert cost.bytes == 10 * 2 * 18 + 3 * (64 + 10) * 4
