"""Lower the nodes that the logits need, in graph order, to ops over tokens.

Each node type has a rule in ``rules``; a rule reads the lowered inputs, writes ops into the draft
and returns the lowered outputs. After each node the result's layout is held against the declared
shape, so that a wrong rule is found where it is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from qeff.compile.passes.numpy_ops import EVALUATE
from qeff.compile.plan import layout as lay
from qeff.compile.plan.constants import Constant, Constants, evaluate
from qeff.compile.plan.draft import Draft
from qeff.compile.plan.layout import Layout, LayoutError
from qeff.container.program import ABSENT, Value
from qeff.core.errors import CompileError
from qeff.core.spec import INPUT_IDS, LOGITS, POSITION_IDS
from qeff.ops.base import RuleError

HINT = "compile with --target ort"
_DOMAINS = ("", "ai.onnx", "qeff")
# Their rules know from the declared shape what their inputs say in sizes that tokens are part of.
_BY_LAYOUT = ("Expand", "Reshape", "Squeeze", "Unsqueeze")


@dataclass(frozen=True, slots=True)
class Tokens:
    """A value of the program, and how the graph's axes lie in it."""

    index: int
    layout: Layout


@dataclass(frozen=True, slots=True)
class Fixed:
    """A constant. Its layout may hold tokens, for a constant that was expanded to every token."""

    constant: Constant
    layout: Layout


Lowered = Tokens | Fixed


class Refusal(Exception):
    """Why a node has no place in a program; ends as a CompileError with the node's name."""


class Lowering:
    """The state of one lowering: what every graph value has become."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self.constants = Constants()
        self.draft = Draft()
        self.node_name = ""
        self.cached: list[tuple[int, int]] = []  # keys and values of each cache of the program
        self._lowered: dict[ir.Value, Lowered] = {}
        for value in graph.inputs:
            if value.name in (INPUT_IDS, POSITION_IDS):
                index = self.draft.add_value(Value(value.name, "token", (), "i64"))
                self._lowered[value] = Tokens(index, (("B",), ("S",)))
                if value.name == INPUT_IDS:
                    self.draft.tokens = index
                else:
                    self.draft.positions = index

    def run(self, rules: Mapping[str, Any], demands: Mapping[str, Any]) -> Draft:
        """Lower every node that is needed; the draft's logits are a token value."""
        logits = next((v for v in self.graph.outputs if v.name == LOGITS), None)
        assert logits is not None, "the graph has no output 'logits'"
        needed = self._needed(logits, demands)
        for node in self.graph:
            if node in needed:
                self._lower(node, rules)
        result = self._lowered.get(logits)
        if not isinstance(result, Tokens):
            raise CompileError("the graph's logits do not depend on its tokens", HINT)
        self.draft.logits = result.index
        return self.draft

    def _needed(self, logits: ir.Value, demands: Mapping[str, Any]) -> set[ir.Node]:
        """The nodes that the logits are made of, less constants and what no rule reads."""
        needed: set[ir.Node] = set()
        pending = [logits]
        while pending:
            value = pending.pop()
            node = value.producer()
            if node is None or node in needed or self.constants.find(value) is not None:
                continue
            needed.add(node)
            asked = demands.get(node.op_type, _all_inputs)(node)
            pending.extend(v for v in asked if v is not None)
        return needed

    def _lower(self, node: ir.Node, rules: Mapping[str, Any]) -> None:
        self.node_name = str(node.name)
        rule = rules.get(node.op_type) if node.domain in _DOMAINS else None
        try:
            if rule is None:
                raise Refusal("no op of the program does this")
            outputs = self._evaluate(node) or rule(node, self)
            for value, lowered in zip(node.outputs, outputs, strict=False):
                if lowered is not None:
                    self._check(value, lowered)
                    self._lowered[value] = lowered
        except (Refusal, LayoutError, RuleError) as reason:
            raise CompileError(
                f"node {node.name!r} ({node.op_type}) cannot be lowered: {reason}", HINT
            ) from reason

    def _evaluate(self, node: ir.Node) -> list[Fixed] | None:
        """The results of a node of constants, some of them expanded to every token."""
        if node.op_type in _BY_LAYOUT or node.op_type not in EVALUATE:
            return None
        inputs: list[Constant | None] = []
        for value in node.inputs:
            if value is None:
                inputs.append(None)
                continue
            found = self._lowered.get(value) or self.find(value)
            if not isinstance(found, Fixed):
                return None
            inputs.append(found.constant)
        outputs: list[Fixed] = []
        for value in node.outputs:
            layout = lay.declared(lay.read_dims(value))
            constant = evaluate(value, node, inputs, lay.stored_shape(layout))
            outputs.append(Fixed(constant, layout))
        return outputs

    def _check(self, value: ir.Value, lowered: Lowered) -> None:
        if not lay.matches(lowered.layout, lay.read_dims(value)):
            raise LayoutError(f"has the layout {lowered.layout}, but declares {value.shape}")

    # What rules use.

    def read(self, value: ir.Value | None) -> Lowered:
        """What an input of a node has become."""
        if value is None:
            raise Refusal("lacks an input")
        found = self._lowered.get(value) or self.find(value)
        if found is None:
            raise Refusal(f"reads {value.name!r}, which is no value of single tokens")
        return found

    def find(self, value: ir.Value) -> Fixed | None:
        """A constant of the graph, as it is stored."""
        constant = self.constants.weight(value)
        return None if constant is None else Fixed(constant, lay.plain(constant.shape))

    def read_tokens(self, value: ir.Value | None) -> Tokens:
        """An input that must vary from token to token."""
        found = self.read(value)
        if isinstance(found, Fixed):
            raise Refusal(f"reads the constant {found.constant.name!r} where a token value must be")
        return found

    def numbers(self, value: ir.Value | None) -> list[int]:
        """A small constant of whole numbers, such as axes."""
        array = self.constants.number(value)
        if array is None:
            raise Refusal("has axes, sizes or indices that are not constant")
        return [int(item) for item in array.reshape(-1)]

    def emit(self, kind: str, inputs: Sequence[int], **attrs: Any) -> list[int]:
        """Write an op, named as the node that is being lowered."""
        return self.draft.add_op(kind, self.node_name, inputs, attrs)

    def shape_of(self, index: int) -> tuple[int, ...]:
        """The inner shape of a program value."""
        return self.draft.values[index].shape

    def dtype_of(self, index: int) -> str:
        """The element type of a program value."""
        return self.draft.values[index].dtype

    def reshape(self, index: int, shape: tuple[int, ...]) -> int:
        """The value under another inner shape; itself when that is the one it has."""
        if self.shape_of(index) == shape:
            return index
        return self.emit("reshape", [index], shape=shape)[0]

    def weight(self, constant: Constant, shape: tuple[int, ...] | None = None) -> int:
        """The program value of a constant, under another shape if one is given."""
        stored, dtype = constant.stored()
        if shape is not None:
            stored = stored.reshape(shape)
        return self.draft.add_weight(stored.name, stored.tensor, dtype)

    def aligned(self, value: Lowered, target: Layout) -> int:
        """The program value of an operand as it must stand to broadcast to ``target``."""
        shape = lay.aligned_shape(value.layout, target)
        if isinstance(value, Tokens):
            if not set(lay.all_tokens(value.layout)) <= set(lay.all_tokens(target)):
                raise LayoutError("combines values whose tokens lie on different axes")
            return self.reshape(value.index, shape)
        while shape and shape[0] == 1:
            shape = shape[1:]
        return self.weight(value.constant, shape)


def _all_inputs(node: ir.Node) -> Sequence[ir.Value | None]:
    return node.inputs


def absent(index: int | None) -> int:
    """The index of an optional input."""
    return ABSENT if index is None else index
