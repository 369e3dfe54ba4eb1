"""Walks a traced program and writes it as ONNX nodes through a table of rules, one per torch op.

Constants are computed here, weights become initialisers with the nodes that make a parameter of
them. The rules live in ``emission/``. Knows nothing about any architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import onnx_ir as ir
import sympy
import torch
from torch.export import ExportedProgram

from qeff.core.errors import UnsupportedModel
from qeff.export.builder import Builder
from qeff.export.fxnode import Node
from qeff.export.infer import Kind
from qeff.export.origin import WeightWriter

DTYPES = {
    torch.float32: ir.DataType.FLOAT,
    torch.float64: ir.DataType.DOUBLE,
    torch.float16: ir.DataType.FLOAT16,
    torch.bfloat16: ir.DataType.BFLOAT16,
    torch.int64: ir.DataType.INT64,
    torch.int32: ir.DataType.INT32,
    torch.int16: ir.DataType.INT16,
    torch.int8: ir.DataType.INT8,
    torch.uint8: ir.DataType.UINT8,
    torch.bool: ir.DataType.BOOL,
}
MAX_FOLDED = 1 << 16  # elements: a larger constant stays an op
SYMBOLS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)

Rule = Callable[["Emitter", Node], Any]


class Emitter:
    """The state of one emission."""

    def __init__(
        self, program: ExportedProgram, axis_names: Mapping[str, str], weights: WeightWriter
    ) -> None:
        self.program = program
        self.weights = weights
        self.build: Builder = weights.build
        self.values: dict[Node, Any] = {}
        self.constants: dict[Node, Any] = {}  # known values, not yet in the graph
        self._axis_names = axis_names

    # ---- what rules ask for

    def value(self, arg: Any) -> Any:
        """The graph value of a program node."""
        if arg not in self.values and arg in self.constants:
            self.values[arg] = self.constant(self.constants[arg])
        return self.values[arg]

    def constant(self, tensor: torch.Tensor) -> ir.Value:
        """A real tensor as a graph constant."""
        if tensor.dtype == torch.bfloat16:
            return self.build.const(tensor.float().numpy(), ml_dtypes.bfloat16)
        array = tensor.detach().contiguous().numpy()
        return self.build.const(array, array.dtype)

    def scalar(self, number: Any, dtype: torch.dtype) -> ir.Value:
        """A number as a constant of a dtype."""
        return self.constant(torch.tensor(number, dtype=dtype))

    def kind(self, node: Node) -> Kind:
        """Dtype and shape that torch gave the node."""
        return self.kind_of(node.meta["val"])

    def kind_of(self, value: torch.Tensor) -> Kind:
        """Dtype and shape of a traced tensor."""
        return Kind(DTYPES[value.dtype], tuple(self.size(d) for d in value.shape))

    def size(self, size: Any) -> sympy.Expr:
        """A traced size over the graph's axis names."""
        if isinstance(size, Node):
            size = size.meta["val"]
        if isinstance(size, torch.SymInt):
            expr = size.node.expr
            known = {
                s: axis_symbol(self._axis_names.get(str(s), str(s))) for s in expr.free_symbols
            }
            return expr.xreplace(known)
        return sympy.Integer(int(size))

    def is_tensor(self, arg: Any) -> bool:
        """Whether an argument is a tensor of the program (else a number or a size)."""
        return isinstance(arg, Node) and isinstance(arg.meta.get("val"), torch.Tensor)

    def tensor(self, arg: Any, dtype: torch.dtype) -> ir.Value:
        """An argument of any sort as a graph value of a dtype."""
        if self.is_tensor(arg):
            return self.build.cast(self.value(arg), DTYPES[dtype])
        number = arg.meta["val"] if isinstance(arg, Node) else arg
        if isinstance(number, torch.SymInt) and not self.size(number).is_Integer:
            return self.build.cast(self.build.scalar_size(self.size(number)), DTYPES[dtype])
        return self.scalar(int(number) if isinstance(number, torch.SymInt) else number, dtype)

    def dtype(self, node: Node) -> torch.dtype:
        """Torch's dtype of a node."""
        return node.meta["val"].dtype

    def op(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attrs: Mapping[str, Any] | None = None,
        node: Node | None = None,
        domain: str = "",
    ) -> ir.Value:
        """A node of the graph; given the program's node, it has that one's dtype and shape."""
        kind = self.kind(node) if node is not None else None
        return self.build.op(op_type, inputs, attrs, kind, domain)

    # ---- the walk

    def run(self, inputs: Mapping[str, ir.Value]) -> list[ir.Value]:
        """Emit everything; gives the values of the program's outputs."""
        from qeff.export.emission import RULES

        self._placeholders(inputs)
        for node in self.program.graph.nodes:
            if node.op == "call_function":
                self.build.scope = scope_of(node)
                self._emit(node, RULES)
        output = next(n for n in self.program.graph.nodes if n.op == "output")
        return [self.value(arg) for arg in output.args[0]]

    def _placeholders(self, inputs: Mapping[str, ir.Value]) -> None:
        signature = self.program.graph_signature
        stored = {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
            **signature.inputs_to_lifted_tensor_constants,
        }
        for node in self.program.graph.nodes:
            if node.op != "placeholder" or not node.users:
                continue
            if node.name in inputs:
                self.values[node] = inputs[node.name]
            elif node.name in stored:
                self._stored(node, stored[node.name])

    def _stored(self, node: Node, name: str) -> None:
        if name in self.weights.origins:
            self.build.scope = name.rpartition(".")[0].partition(".")[2]
            self.values[node] = self.weights.parameter(name, self.kind(node).dtype)
            return
        table = (
            self.program.state_dict if name in self.program.state_dict else self.program.constants
        )
        self.constants[node] = table[name].detach()

    def _emit(self, node: Node, rules: Mapping[Any, Rule]) -> None:
        value = node.meta.get("val")
        if isinstance(value, SYMBOLS) or "assert" in str(node.target) or self._fold(node):
            return  # sizes are made again from shapes where they are used
        rule = rules.get(node.target)
        if rule is None:
            raise UnsupportedModel(
                f"{scope_of(node) or 'the model'} uses {node.target}, which has no ONNX form here",
                "report the model type; the op needs a rule in qeff/export/emission",
            )
        self.values[node] = rule(self, node)

    def _fold(self, node: Node) -> bool:
        """Compute the node at once when all that it reads is known."""
        value = node.meta.get("val")
        outs = value if isinstance(value, list | tuple) else (value,)
        for out in outs:
            if not isinstance(out, torch.Tensor) or any(
                isinstance(d, torch.SymInt) for d in out.shape
            ):
                return False
            if out.numel() > MAX_FOLDED:
                return False
        known: list[bool] = []

        def look(arg: Any) -> Any:
            number = arg.meta.get("val")
            known.append(arg in self.constants or isinstance(number, int | float | bool))
            return self.constants.get(arg, number)

        args = torch.fx.map_arg(node.args, look)
        kwargs = torch.fx.map_arg(node.kwargs, look)
        if not all(known) or str(node.target).startswith("qeff."):
            return False
        self.constants[node] = node.target(*args, **kwargs)
        return True


def scope_of(node: Node) -> str:
    """The path of the module that a node was traced in, as the checkpoint names it."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next(reversed(stack.values()))[0] if stack else ""
    return str(path).removeprefix("model").removeprefix(".")


def axis_symbol(name: str) -> sympy.Symbol:
    """The size of a named axis."""
    return sympy.Symbol(name, integer=True, positive=True)
