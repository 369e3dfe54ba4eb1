"""Rules of torch ops that few models use: what ONNX Runtime computes against torch itself."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from torch import Tensor

from qeff.export.builder import OPSET, Builder
from qeff.export.emitter import Emitter
from qeff.export.exporter import IR_VERSION
from qeff.export.origin import WeightWriter


def every_third(x: Tensor) -> Tensor:
    out = x * 2
    out[..., 1:5:3] = x[..., 0:2] + 7
    return out


def one_row(x: Tensor) -> Tensor:
    out = x * 2
    out[1] = x[2] - 5
    return out


def number_by_mask(x: Tensor) -> Tensor:
    out = x * 2
    out[x > 0.3] = -4.0
    return out


def rows_by_mask(x: Tensor) -> Tensor:
    out = x * 2
    out[x[:, 0] > 0] = -4.0
    return out


FUNCTIONS: list[Callable[[Tensor], Tensor]] = [
    every_third,
    one_row,
    number_by_mask,
    rows_by_mask,
    lambda x: torch.clamp(x, min=x.mean(-1, keepdim=True)),
    lambda x: torch.clamp(x, max=x.mean(-1, keepdim=True)),
    lambda x: torch.expm1(x / 3),
    lambda x: torch.linalg.vector_norm(x, ord=1, dim=-1, keepdim=True),
    lambda x: torch.linalg.vector_norm(x, ord=2, dim=-1, keepdim=True),
    lambda x: torch.concat([x, x + 1], 1),
]


class Wrap(torch.nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_rule(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    program = torch.export.export(Wrap(function), (x,)).run_decompositions({})
    build = Builder()
    emitter = Emitter(program, {}, WeightWriter(build, {}, {}))
    (name,) = program.graph_signature.user_inputs
    node = next(n for n in program.graph.nodes if n.name == name)
    given = build.input("x", emitter.kind(node))
    (out,) = emitter.run({name: given})
    stored = list(build.initializers.values())
    graph = ir.Graph(
        [given], [out], nodes=build.nodes, initializers=stored, opset_imports={"": OPSET}
    )
    data = ir.to_proto(ir.Model(graph, ir_version=IR_VERSION)).SerializeToString()
    (got,) = ort.InferenceSession(data).run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(got), function(x), atol=1e-6, rtol=1e-6)
