"""The program of a whole decoder: what it consists of, and that planning reads no weight."""

from __future__ import annotations

import collections
import logging

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from dialect import Size, build, build_random, random_weights

from qeff.compile.plan import plan
from qeff.container.program import Program
from qeff.core.errors import CompileError
from qeff.ops import validate


def counts(program: Program) -> dict[str, int]:
    return dict(collections.Counter(op.kind for op in program.ops))


@pytest.mark.parametrize("continuous", [False, True])
def test_a_llama_becomes_the_ops_one_would_write_by_hand(continuous: bool) -> None:
    graph, weights = build_random(Size(continuous=continuous))
    program, tensors = plan(graph)
    found = counts(program)
    layers = Size().layers
    assert found["linear"] == 7 * layers + 1
    assert found["attention"] == found["gated"] == layers
    assert found["rope"] == 2 * layers
    assert found["norm"] == 2 * layers + 1
    assert found["embed"] == 1
    # The last layer's input, what its norm makes of it, and the angles of its queries.
    assert found["gather_rows"] == 4
    assert "transpose" not in found and "expand" not in found
    # Weights go by the checkpoint's names and as the checkpoint has them.
    used = {name for name in tensors if not name.startswith("const")}
    assert used == set(weights)
    assert all(op.attrs["transposed"] is False for op in program.ops if op.kind == "linear")


def test_caches_are_those_of_the_model() -> None:
    graph, _ = build_random(Size())
    assert plan(graph)[0].caches == graph.spec.caches


def test_the_same_graph_gives_the_same_program() -> None:
    first, second = (plan(build_random(Size())[0])[0].to_json() for _ in range(2))
    assert first == second
    assert Program.from_json(first).to_json() == first


def test_planning_reads_no_weight_and_leaves_the_graph_alone() -> None:
    size = Size()
    arrays = random_weights(size)
    reads: list[str] = []

    def lazy(name: str, array: np.ndarray) -> ir.LazyTensor:
        stored = array.astype(ml_dtypes.bfloat16)

        def read() -> ir.TensorProtocol:
            reads.append(name)
            return ir.tensor(stored, name=name)

        return ir.LazyTensor(read, ir.DataType.BFLOAT16, ir.Shape(array.shape), name=name)

    graph = build(size, {name: lazy(name, array) for name, array in arrays.items()})
    before = [(node.name, node.op_type) for node in graph.model.graph]
    program, tensors = plan(graph)
    assert reads == []
    assert [(node.name, node.op_type) for node in graph.model.graph] == before
    # A cast to a wider float is left to whoever reads the weight.
    kept = {v.name: v.dtype for v in program.weights()}
    assert kept["model.layers.0.mlp.down_proj.weight"] == "bf16"
    assert kept["model.embed_tokens.weight"] == "bf16"
    tensors["model.norm.weight"].numpy()
    assert reads == ["model.norm.weight"]


def test_the_program_passes_its_own_validation_after_json() -> None:
    program, _ = plan(build_random(Size())[0])
    validate(Program.from_json(program.to_json()))


def test_a_mask_that_no_op_says_is_refused() -> None:
    graph, _ = build_random(Size(layers=1))
    (attention,) = [node for node in graph.model.graph if node.op_type == "Attention"]
    odd = ir.node("Identity", [graph.model.graph.inputs[0]], name="odd/Identity")
    odd.outputs[0].shape, odd.outputs[0].type = ir.Shape(["batch_size"]), attention.inputs[0].type
    graph.model.graph.insert_before(attention, odd)
    attention.replace_input_with(3, odd.outputs[0])
    with pytest.raises(CompileError, match=r"Attention.*mask made by Identity"):
        plan(graph)


def test_a_layer_that_shares_a_cache_writes_nothing() -> None:
    graph, _ = build_random(Size(layers=2))
    first, second = (node for node in graph.model.graph if node.op_type == "Attention")
    for place in (1, 2):
        second.replace_input_with(place, first.inputs[place])
    program, _ = plan(graph)
    writer, reader = (op for op in program.ops if op.kind == "attention")
    assert (writer.attrs["cache"], reader.attrs["cache"]) == (0, 0)
    assert -1 not in writer.inputs[:3] and reader.inputs[1:3] == (-1, -1)
    assert len(program.caches) == 1
    assert counts(program)["linear"] == 2 * 7 + 1 - 2  # nothing makes the second keys and values


def test_rewrites_say_why_they_decline(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="qeff"):
        plan(build_random(Size())[0])
    assert any("gate applied 2 times" in message for message in caplog.messages)
