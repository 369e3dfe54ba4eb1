"""Makes ONNX nodes one by one: names, constants, common subexpressions, run-time sizes.

Every value gets its dtype and shape. Sizes are sympy expressions over the graph's axis names.
Knows nothing about torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import sympy

from qeff.export.infer import Kind, infer

OPSET = 24
DOMAIN = "qeff"


@dataclass(frozen=True, slots=True)
class _Origin:
    value: ir.Value
    axis: int


class Builder:
    """The nodes of one graph, in order."""

    def __init__(self) -> None:
        self.nodes: list[ir.Node] = []
        self.initializers: dict[str, ir.Value] = {}
        self.scope = ""  # path of the module that the nodes come from
        self._kinds: dict[ir.Value, Kind] = {}
        self._made: dict[Any, Any] = {}
        self._constants: dict[Any, ir.Value] = {}
        self._axes: dict[sympy.Expr, _Origin] = {}  # a size, and an input that has it

    # ---- values

    def kind(self, value: ir.Value) -> Kind:
        """Its dtype and shape."""
        return self._kinds[value]

    def declare(self, value: ir.Value, kind: Kind) -> ir.Value:
        """Give a value its dtype and shape."""
        self._kinds[value] = kind
        value.type = ir.TensorType(kind.dtype)
        value.shape = ir.Shape([int(d) if d.is_Integer else str(d) for d in kind.dims])
        return value

    def input(self, name: str, kind: Kind) -> ir.Value:
        """A graph input; its symbolic axes become known sizes."""
        value = self.declare(ir.Value(name=name), kind)
        for axis, size in enumerate(kind.dims):
            if not size.is_Integer:
                self._axes.setdefault(size, _Origin(value, axis))
        return value

    def initializer(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        """A stored tensor under its own name."""
        if name not in self.initializers:
            dims = tuple(sympy.Integer(d) for d in tensor.shape.numpy())
            value = ir.Value(name=name, const_value=tensor)
            self.initializers[name] = self.declare(value, Kind(tensor.dtype, dims))
        return self.initializers[name]

    def const(self, data: Any, dtype: Any = np.int64) -> ir.Value:
        """A small constant; equal ones are one."""
        array = np.asarray(data, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            name = f"constant_{len(self._constants)}"
            self._constants[key] = self.initializer(name, ir.tensor(array, name=name))
        return self._constants[key]

    # ---- nodes

    def op(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attrs: Mapping[str, Any] | None = None,
        kind: Kind | Sequence[Kind] | None = None,
        domain: str = "",
    ) -> Any:
        """A node, or an equal one made before; gives a tuple when ``kind`` lists several."""
        attrs = dict(attrs or {})
        if op_type == "Transpose":
            inputs, attrs = self._merge_transposes(inputs, attrs)
            if attrs["perm"] == list(range(len(attrs["perm"]))):
                return inputs[0]
        key = (
            op_type,
            domain,
            tuple(inputs),
            tuple(sorted((k, repr(v)) for k, v in attrs.items())),
        )
        if key not in self._made:
            if kind is None:
                known = [None if v is None else self._kinds[v] for v in inputs]
                kind_now: Sequence[Kind] = [infer(op_type, known, attrs, inputs)]
            else:
                kind_now = [kind] if isinstance(kind, Kind) else kind
            self._made[key] = self._node(op_type, inputs, attrs, kind_now, domain)
        outputs = self._made[key]
        return outputs if isinstance(kind, list | tuple) else outputs[0]

    def _node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attrs: Mapping[str, Any],
        kinds: Sequence[Kind],
        domain: str,
    ) -> tuple[ir.Value, ...]:
        name = f"{self.scope}/{op_type}_{len(self.nodes)}"
        made = [_attribute(key, value) for key, value in attrs.items()]
        node = ir.Node(domain, op_type, inputs, made, num_outputs=len(kinds), name=name)
        for i, (value, kind) in enumerate(zip(node.outputs, kinds, strict=True)):
            value.name = name if i == 0 else f"{name}:{i}"
            self.declare(value, kind)
        self.nodes.append(node)
        return tuple(node.outputs)

    def _merge_transposes(
        self, inputs: Sequence[ir.Value | None], attrs: dict[str, Any]
    ) -> tuple[Sequence[ir.Value | None], dict[str, Any]]:
        assert inputs[0] is not None, "Transpose needs an input"
        before = inputs[0].producer()
        if before is None or before.op_type != "Transpose":
            return inputs, attrs
        inner = list(before.attributes["perm"].as_ints())
        return [before.inputs[0]], {"perm": [inner[i] for i in attrs["perm"]]}

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """The value in another dtype."""
        if self.kind(value).dtype == dtype:
            return value
        return self.op("Cast", [value], {"to": int(dtype)})

    # ---- sizes

    def size(self, expr: sympy.Expr) -> ir.Value:
        """A size as an int64 tensor of one element."""
        if expr.is_Integer:
            return self.const([int(expr)])
        if expr in self._axes:
            origin = self._axes[expr]
            return self.op("Shape", [origin.value], {"start": origin.axis, "end": origin.axis + 1})
        parts = [self.size(arg) for arg in expr.args]
        name = {"FloorDiv": "Div", "CleanDiv": "Div"}.get(type(expr).__name__, type(expr).__name__)
        assert name in {"Add", "Mul", "Div", "Max", "Min"}, f"the size {expr} cannot be computed"
        if name in {"Max", "Min"}:
            return self.op(name, parts)
        total = parts[0]
        for part in parts[1:]:
            total = self.op(name, [total, part])
        return total

    def scalar_size(self, expr: sympy.Expr) -> ir.Value:
        """A size as an int64 scalar."""
        return self.const(int(expr)) if expr.is_Integer else self.op("Squeeze", [self.size(expr)])

    def shape(self, dims: Sequence[sympy.Expr]) -> ir.Value:
        """A shape as an int64 tensor."""
        if all(d.is_Integer for d in dims):
            return self.const([int(d) for d in dims])
        return self.op("Concat", [self.size(d) for d in dims], {"axis": 0})

    def reshape(self, value: ir.Value, kind: Kind) -> ir.Value:
        """The same values under another shape, said with 0 and -1 wherever possible."""
        before, after = self.kind(value).dims, kind.dims
        if before == after:
            return value
        target: list[int] = []
        for i, size in enumerate(after):
            if size.is_Integer:
                target.append(int(size))
            else:
                target.append(0 if i < len(before) and before[i] == size else -1)
        if target.count(-1) <= 1:
            return self.op("Reshape", [value, self.const(target)], kind=kind)
        if [d for d in before if d != 1] == [d for d in after if d != 1]:
            return self._move_ones(value, kind)
        first = target.index(-1)  # one unknown may stay open
        parts = [self.const([-1]) if i == first else self.size(d) for i, d in enumerate(after)]
        return self.op("Reshape", [value, self.op("Concat", parts, {"axis": 0})], kind=kind)

    def _move_ones(self, value: ir.Value, kind: Kind) -> ir.Value:
        drop = [i for i, d in enumerate(self.kind(value).dims) if d == 1]
        add = [i for i, d in enumerate(kind.dims) if d == 1]
        if drop:
            value = self.op("Squeeze", [value, self.const(drop)])
        return self.op("Unsqueeze", [value, self.const(add)], kind=kind) if add else value

    def expand(self, value: ir.Value, dims: Sequence[sympy.Expr]) -> ir.Value:
        """The value broadcast to a shape."""
        before = self.kind(value).dims
        if before == tuple(dims):
            return value
        pad = len(dims) - len(before)
        wanted = [
            sympy.Integer(1) if i >= pad and before[i - pad] == size else size
            for i, size in enumerate(dims)
        ]
        kind = Kind(self.kind(value).dtype, tuple(dims))
        return self.op("Expand", [value, self.shape(wanted)], kind=kind)

    def squeeze_axes(self, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        """The value without some axes of size one."""
        return self.op("Squeeze", [value, self.const(list(axes))])

    def unsqueeze(self, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        """The value with axes of size one at these places of the result."""
        return self.op("Unsqueeze", [value, self.const(list(axes))])


def _attribute(name: str, value: Any) -> ir.Attr:
    if isinstance(value, bool | int):
        return ir.AttrInt64(name, int(value))
    if isinstance(value, float):
        return ir.AttrFloat32(name, value)
    if isinstance(value, str):
        return ir.AttrString(name, value)
    return ir.AttrInt64s(name, [int(item) for item in value])
