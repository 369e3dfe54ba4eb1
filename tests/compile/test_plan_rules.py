"""Every node type that lowers: the program of a small graph gives what ONNX Runtime gives.

The graph computes something of each token's embedding [batch, seq, 24] and position; the program
sees the same tokens flat, without padding, in another order of the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from dialect import F32, I64, Builder, FakeGraph

from qeff.compile.plan import plan
from qeff.core.errors import CompileError
from qeff.core.spec import ModelSpec
from qeff.ops import Step
from qeff.ops.interpreter import Interpreter

B, S, T, WIDTH = "batch_size", "seq_len", "batch_size*seq_len", 24
BOOL = ir.DataType.BOOL
RNG = np.random.default_rng(5)


class Net(Builder):
    """A graph whose logits are whatever a test makes of ``x`` and ``positions``."""

    def __init__(self) -> None:
        table = (RNG.standard_normal((11, WIDTH)) * 2).astype(np.float32)
        super().__init__({"table": ir.tensor(table, name="table")})
        self.ids, self.positions = (
            ir.Value(name=name, shape=ir.Shape([B, S]), type=ir.TensorType(I64))
            for name in ("input_ids", "position_ids")
        )
        self.x = self.add("Gather", [self.weight("table"), self.ids], [B, S, WIDTH], axis=0)

    def normal(self, *shape: int) -> ir.Value:
        return self.const(RNG.standard_normal(shape), np.float32)

    def real_positions(self) -> ir.Value:
        return self.add("Cast", [self.positions], [B, S], to=int(F32))

    def graph(self, result: ir.Value) -> FakeGraph:
        """Flatten the result to [batch, seq, vocab] floats and close the graph."""
        if result.dtype != F32:
            result = self.add("Cast", [result], list(result.shape), to=int(F32))
        count = int(np.prod([s for s in result.shape if isinstance(s, int)]))
        flat = self.add("Reshape", [result, self.const([0, 0, count])], [B, S, count])
        flat.name = "logits"
        graph = ir.Graph(
            [self.ids, self.positions], [flat], nodes=self.nodes, name="main",
            initializers=list(self.values.values()), opset_imports={"": 24},
        )  # fmt: skip
        spec = ModelSpec("tiny", "Tiny", "tiny", count, 0, 0, None, ())
        return FakeGraph(ir.Model(graph, ir_version=11), spec)


def compare(graph: FakeGraph, tolerance: float = 1e-5) -> list[str]:
    """Run both, hold them against each other, and give the kinds of the program's ops."""
    lengths, longest = (3, 5), 5
    ids = RNG.integers(0, 11, (2, longest))
    places = np.array([[4 + i for i in range(longest)], list(range(longest))])
    proto = ir.to_proto(graph.model).SerializeToString()
    run = onnxruntime.InferenceSession(proto, providers=["CPUExecutionProvider"]).run
    (theirs,) = run(None, {"input_ids": ids, "position_ids": places})

    program, tensors = plan(graph)
    interpreter = Interpreter(program, {n: np.asarray(t.numpy()) for n, t in tensors.items()})
    flat = [(b, s) for b, n in enumerate(lengths) for s in range(n)]
    tokens = np.array([ids[b, s] for b, s in flat])
    positions = np.array([places[b, s] for b, s in flat])
    rows = np.array([6, 0, 2, 7])
    owners = np.array([b for b, _ in flat])
    ours = interpreter.run(tokens, Step(positions, owners, positions, rows))
    expected = np.stack([theirs[flat[row]] for row in rows])
    np.testing.assert_allclose(ours, expected, rtol=tolerance, atol=tolerance)
    return [op.kind for op in program.ops]


Make = Callable[[Net], ir.Value]
SHAPE = [B, S, WIDTH]


def one(kind: str, *extra: Any, shape: list | None = None, dtype: Any = F32, **attrs: Any) -> Make:
    """A single node on x, with constants behind it."""

    def make(net: Net) -> ir.Value:
        inputs = [net.x] + [None if e is None else net.const(*e) for e in extra]
        return net.add(kind, inputs, shape or SHAPE, dtype, **attrs)

    return make


def unary(kind: str, positive: bool = False) -> Make:
    def make(net: Net) -> ir.Value:
        x = net.add("Abs", [net.x], SHAPE) if positive else net.x
        x = net.add("Add", [x, net.const(0.1, np.float32)], SHAPE) if positive else x
        return net.add(kind, [x], SHAPE)

    return make


def heads(net: Net) -> ir.Value:
    """[batch, 4, seq, 6]"""
    split = net.add("Reshape", [net.x, net.const([0, 0, 4, 6])], [B, S, 4, 6])
    return net.add("Transpose", [split], [B, 4, S, 6], perm=[0, 2, 1, 3])


def back(net: Net, x: ir.Value) -> ir.Value:
    """[batch, heads, seq, dim] -> [batch, seq, heads, dim]"""
    _, h, _, d = x.shape
    return net.add("Transpose", [x], [B, S, h, d], x.dtype, perm=[0, 2, 1, 3])


def binary(kind: str, dtype: Any = F32) -> Make:
    def make(net: Net) -> ir.Value:
        a = heads(net)
        scaled = net.add("Mul", [a, net.normal(4, 1, 1)], [B, 4, S, 6])
        result = net.add(kind, [scaled, a], [B, 4, S, 6], dtype)
        return back(net, result)

    return make


def logic(kind: str) -> Make:
    def make(net: Net) -> ir.Value:
        a = net.add("Greater", [net.x, net.const(0.0, np.float32)], SHAPE, BOOL)
        b = net.add("Less", [net.x, net.normal(WIDTH)], SHAPE, BOOL)
        return net.add(kind, [a, b], SHAPE, BOOL)

    return make


def rotary(interleaved: int, width: int, flat: bool) -> Make:
    def make(net: Net) -> ir.Value:
        table = [net.const(f(np.outer(np.arange(16), np.arange(1, width + 1))), np.float32)
                 for f in (np.cos, np.sin)]  # fmt: skip
        attrs = {"interleaved": interleaved, "rotary_embedding_dim": 0 if width == 3 else 2 * width}
        if flat:
            return net.add(
                "RotaryEmbedding", [net.x, *table, net.positions], SHAPE, num_heads=4, **attrs
            )
        looked = [net.add("Gather", [t, net.positions], [B, S, width], axis=0) for t in table]
        return back(net, net.add("RotaryEmbedding", [heads(net), *looked], [B, 4, S, 6], **attrs))

    return make


def matmul_stack(net: Net) -> ir.Value:
    return back(net, net.add("MatMul", [heads(net), net.normal(4, 6, 5)], [B, 4, S, 5]))


def matmul_inner(net: Net) -> ir.Value:
    a = net.add("Reshape", [net.x, net.const([0, 0, 4, 6])], [B, S, 4, 6])
    b = net.add("Transpose", [a], [B, S, 6, 4], perm=[0, 1, 3, 2])
    return net.add("MatMul", [a, b], [B, S, 4, 4])


def angles(net: Net) -> ir.Value:
    """inv_freq [batch, 4, 1] times positions [batch, 1, seq], as rotary modules write it."""
    size = net.add("Shape", [net.ids], [1], I64, start=0, end=1)
    shape = net.add("Concat", [size, net.const([4]), net.const([1])], [3], I64, axis=0)
    wide = net.add("Expand", [net.normal(1, 4, 1), shape], [B, 4, 1])
    place = net.add("Unsqueeze", [net.real_positions(), net.const([1])], [B, 1, S])
    product = net.add("MatMul", [wide, place], [B, 4, S])
    return net.add("Transpose", [product], [B, S, 4], perm=[0, 2, 1])


def gemm(net: Net) -> ir.Value:
    flat = net.add("Reshape", [net.x, net.const([-1, WIDTH])], [T, WIDTH])
    y = net.add("Gemm", [flat, net.normal(5, WIDTH), net.normal(5)], [T, 5], transB=1, alpha=0.5)
    size = net.add("Shape", [net.ids], [2], I64)
    shape = net.add("Concat", [size, net.const([5])], [3], I64, axis=0)
    return net.add("Reshape", [y, shape], [B, S, 5])


def router(net: Net) -> ir.Value:
    """Scatter a choice into zeros made for the tokens, then mask, as group-limited routers do."""
    size = net.add("Shape", [net.ids], [2], I64)
    shape = net.add("Concat", [size, net.const([WIDTH])], [3], I64, axis=0)
    zeros = net.add("Expand", [net.const(0.0, np.float32), shape], SHAPE)
    node = ir.node("TopK", [net.x, net.const([3])], {"axis": -1}, num_outputs=2, name="topk")
    net.nodes.append(node)
    for value, dtype, name in zip(node.outputs, (F32, I64), ("best", "where"), strict=True):
        value.shape, value.type, value.name = ir.Shape([B, S, 3]), ir.TensorType(dtype), name
    best, index = node.outputs
    put = net.add("ScatterElements", [zeros, index, best], SHAPE, axis=-1)
    hit = net.add("Greater", [put, net.const(0.0, np.float32)], SHAPE, BOOL)
    kept = net.add("Where", [hit, net.x, net.const(-5.0, np.float32)], SHAPE)
    return net.add("GatherElements", [kept, index], [B, S, 3], axis=2)


def tiled_experts(net: Net) -> ir.Value:
    """Every token for every expert, as a dense mixture does: experts stand before tokens."""
    flat = net.add("Reshape", [net.x, net.const([-1, WIDTH])], [T, WIDTH])
    tiled = net.add("Tile", [flat, net.const([3, 1])], [f"3*{T}", WIDTH])
    stack = net.add("Reshape", [tiled, net.const([3, -1, WIDTH])], [3, T, WIDTH])
    made = net.add("MatMul", [stack, net.normal(3, WIDTH, 4)], [3, T, 4])
    total = net.add("ReduceSum", [made, net.const([0])], [T, 4], keepdims=0)
    size = net.add("Shape", [net.ids], [2], I64)
    shape = net.add("Concat", [size, net.const([4])], [3], I64, axis=0)
    return net.add("Reshape", [total, shape], [B, S, 4])


def split(net: Net) -> ir.Value:
    node = ir.node("Split", [net.x, net.const([5, 19])], {"axis": -1}, num_outputs=2, name="split")
    net.nodes.append(node)
    for i, (value, size) in enumerate(zip(node.outputs, (5, 19), strict=True)):
        value.shape, value.type, value.name = ir.Shape([B, S, size]), ir.TensorType(F32), f"part{i}"
    return net.add("Concat", [node.outputs[1], node.outputs[0]], SHAPE, axis=2)


def longest(net: Net) -> ir.Value:
    """A choice by the largest position of the row, as rotary tables for long contexts make it."""
    top = net.add("ReduceMax", [net.positions, net.const([1])], [B], I64, keepdims=0)
    is_long = net.add("Greater", [top, net.const(4)], [B], BOOL)
    lifted = net.add("Unsqueeze", [is_long, net.const([1, 2])], [B, 1, 1], BOOL)
    negative = net.add("Neg", [net.x], SHAPE)
    return net.add("Where", [lifted, net.x, negative], SHAPE)


def counted(net: Net, by_slice: bool) -> ir.Value:
    """Positions counted anew: the row's first one and a range, as some models do."""
    if by_slice:
        first = net.add("Slice", [net.positions, *map(net.const, ([0], [1], [1]))], [B, 1], I64)
    else:
        clipped = net.add("Clip", [net.positions, net.const(0)], [B, S], I64)
        picked = net.add("Gather", [clipped, net.const(0)], [B], I64, axis=1)
        first = net.add("Unsqueeze", [picked, net.const([1])], [B, 1], I64)
    size = net.add("Squeeze", [net.add("Shape", [net.ids], [1], I64, start=1, end=2)], [], I64)
    places = net.add("Range", [net.const(0), size, net.const(1)], [S], I64)
    total = net.add("Add", [first, places], [B, S], I64)
    moved = net.add("Add", [total, net.const(2)], [B, S], I64)
    return net.add("Gather", [net.normal(16, 5), moved], [B, S, 5], axis=0)


def row_tables(net: Net) -> ir.Value:
    """A table for each sequence alike, read element by element at each token's position."""
    size = net.add("Shape", [net.ids], [1], I64, start=0, end=1)
    shape = net.add("Concat", [size, net.const([1]), net.const([1])], [3], I64, axis=0)
    table = net.add("Tile", [net.normal(1, 16, 6), shape], [B, 16, 6])
    lifted = net.add("Unsqueeze", [net.positions, net.const([2])], [B, S, 1], I64)
    wide = net.add("Tile", [lifted, net.const([1, 1, 6])], [B, S, 6], I64)
    return net.add("GatherElements", [table, wide], [B, S, 6], axis=1)


def one_hot(net: Net) -> ir.Value:
    values = net.const([2, 7])
    return net.add("OneHot", [net.positions, net.const(9), values], [B, S, 9], I64, axis=-1)


CASES: dict[str, Make] = {
    **{kind: unary(kind) for kind in (
        "Abs", "Ceil", "Cos", "Erf", "Exp", "Floor", "Gelu", "LeakyRelu", "Neg", "Relu", "Round",
        "Sigmoid", "Sign", "Sin", "Softplus", "Tanh", "Identity", "LogSoftmax", "Softmax",
    )},
    **{kind: unary(kind, positive=True) for kind in ("Log", "Reciprocal", "Sqrt")},
    **{kind: binary(kind) for kind in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum")},
    **{kind: binary(kind, BOOL) for kind in (
        "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal")},
    **{kind: logic(kind) for kind in ("And", "Or", "Xor")},
    "Not": lambda n: n.add("Not", [logic("And")(n)], SHAPE, BOOL),
    "Pow 2": one("Pow", (2.0, np.float32)),
    "Pow 3": one("Pow", (3, np.int64)),
    "Mod": lambda n: n.add("Mod", [n.positions, n.const(3)], [B, S], I64),
    "fmod": one("Mod", (0.7, np.float32), fmod=1),
    "gelu tanh": one("Gelu", approximate="tanh"),
    "Swish alpha": one("Swish", alpha=1.7),
    "Clip": one("Clip", (-0.5, np.float32), (0.8, np.float32)),
    "Clip above": one("Clip", None, (0.8, np.float32)),
    "RMSNormalization": lambda n: n.add(
        "RMSNormalization", [n.x, n.normal(WIDTH)], SHAPE, epsilon=1e-3),
    "LayerNormalization": lambda n: n.add(
        "LayerNormalization", [n.x, n.normal(WIDTH), n.normal(WIDTH)], SHAPE, axis=-1),
    "norm of each head": lambda n: back(n, n.add(
        "RMSNormalization", [heads(n), n.normal(6)], [B, 4, S, 6], axis=-1)),
    **{f"RotaryEmbedding {i}{w}{f}": rotary(i, w, f)
       for i in (0, 1) for w in (3, 2) for f in (False, True)},
    "MatMul": lambda n: n.add("MatMul", [n.x, n.normal(WIDTH, 7)], [B, S, 7]),
    "MatMul of a stack": matmul_stack,
    "MatMul within tokens": matmul_inner,
    "outer product": angles,
    "Gemm": gemm,
    **{kind: one(kind, ([-1],), shape=[B, S, 1]) for kind in (
        "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceL2",
        "ReduceSumSquare")},
    "ReduceSum no axis kept": one("ReduceSum", ([2],), shape=[B, S], keepdims=0),
    "CumSum": one("CumSum", (2,)),
    "ArgMax": one("ArgMax", shape=[B, S, 1], dtype=I64, axis=-1),
    "ArgMin": one("ArgMin", shape=[B, S], dtype=I64, axis=2, keepdims=0),
    "router": router,
    "tiled experts": tiled_experts,
    "longest": longest,
    "counted positions": lambda n: counted(n, by_slice=False),
    "counted positions by slice": lambda n: counted(n, by_slice=True),
    "tables of rows": row_tables,
    "OneHot": one_hot,
    "Slice": one("Slice", ([3],), ([20],), ([2],), ([3],), shape=[B, S, 6]),
    "Slice from the end": one("Slice", ([-7],), ([1 << 62],), ([-1],), shape=[B, S, 7]),
    "Split": split,
    "Gather one": one("Gather", (4,), shape=[B, S], axis=2),
    "Gather some": one("Gather", ([4, 0, -1],), shape=[B, S, 3], axis=-1),
    "Pad": one("Pad", ([1, 2],), (0.5, np.float32), ([2],), shape=[B, S, WIDTH + 3]),
    "Tile inner": one("Tile", ([1, 1, 2],), shape=[B, S, 2 * WIDTH]),
    "Transpose inner": lambda n: n.add("Transpose", [n.add(
        "Reshape", [n.x, n.const([0, 0, 4, 6])], [B, S, 4, 6])], [B, S, 6, 4], perm=[0, 1, 3, 2]),
    "Concat with a constant": lambda n: n.add(
        "Concat", [heads(n), n.add("Expand", [n.normal(1, 4, 1, 2), n.add("Concat", [
            n.add("Shape", [n.ids], [1], I64, start=0, end=1), n.const([4]),
            n.add("Shape", [n.ids], [1], I64, start=1, end=2), n.const([2])], [4], I64, axis=0)],
            [B, 4, S, 2])], [B, 4, S, 8], axis=3),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_program_gives_what_onnx_runtime_gives(name: str) -> None:
    net = Net()
    result = CASES[name](net)
    if result.shape is not None and len(result.shape) == 4 and str(result.shape[2]) == S:
        result = back(net, result)
    compare(net.graph(result))


def test_moving_tokens_alone_costs_nothing() -> None:
    net = Net()
    kinds = compare(net.graph(back(net, heads(net))))
    assert sorted(set(kinds)) == ["embed", "gather_rows", "reshape"]


def test_counted_positions_are_read_from_the_caller() -> None:
    net = Net()
    assert compare(net.graph(counted(net, by_slice=False))) == ["gather_rows", "embed"]


def refuse(net: Net, result: ir.Value, reason: str) -> None:
    with pytest.raises(CompileError, match=reason) as caught:
        plan(net.graph(result))
    assert "--target ort" in (caught.value.hint or "")
    assert any(str(node.name) in str(caught.value) for node in net.nodes)


def test_sums_over_tokens_are_refused_with_the_nodes_name() -> None:
    net = Net()
    total = net.add("ReduceSum", [net.x, net.const([1])], [B, 1, WIDTH])
    refuse(net, net.add("Add", [net.x, total], SHAPE), r"n1/ReduceSum.*counts tokens")


def test_products_of_tokens_with_each_other_are_refused() -> None:
    net = Net()
    turned = net.add("Transpose", [net.x], [B, WIDTH, S], perm=[0, 2, 1])
    scores = net.add("MatMul", [net.x, turned], [B, S, S])
    refuse(net, net.add("MatMul", [scores, net.x], SHAPE), "across tokens")


def test_an_unknown_node_is_refused() -> None:
    net = Net()
    refuse(net, net.add("Hardmax", [net.x], SHAPE), "no op of the program")
    net = Net()
    refuse(net, net.add("Gelu", [net.x], SHAPE, domain="com.example"), "no op of the program")


def test_a_shape_that_lies_is_found() -> None:
    net = Net()
    refuse(net, net.add("ReduceSum", [net.x, net.const([2])], [B, S, 2]), "declares")
