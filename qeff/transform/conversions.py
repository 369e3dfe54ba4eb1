"""Runs transformers' own weight conversions without values and writes down what they did.

A conversion stacks, cuts, transposes and reshapes checkpoint tensors; a dispatch mode follows each
of these steps and keeps the expression beside the result. Knows nothing about names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from qeff.core.errors import UnsupportedModel
from qeff.transform.expression import Expression, concat, cut, permute, reshape, stack

aten = torch.ops.aten


class Recorder(TorchDispatchMode):
    """Follows expressions through the ops that weight conversions are made of."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, tuple[Tensor, Expression]] = {}  # the tensor keeps its id alive

    def tensor(self, expression: Expression) -> Tensor:
        """A tensor without values that stands for an expression."""
        out = torch.empty(expression.shape, device="meta")
        self._keep(out, expression)
        return out

    def expression(self, tensor: Tensor) -> Expression:
        """What a tensor was made from."""
        assert id(tensor) in self._known, "a conversion made a tensor from nothing"
        return self._known[id(tensor)][1]

    def _keep(self, tensor: Tensor, expression: Expression) -> None:
        assert tuple(tensor.shape) == expression.shape, f"{tensor.shape} is not {expression.shape}"
        self._known[id(tensor)] = (tensor, expression)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        flat = args[0] if args and isinstance(args[0], list | tuple) else args
        if not any(isinstance(a, Tensor) and id(a) in self._known for a in flat):
            return out
        rule = RULES.get(func)
        if rule is None:
            raise UnsupportedModel(
                f"a weight conversion of transformers uses {func}, which no graph can say here"
            )
        if isinstance(args[0], list | tuple):
            given: Any = tuple(self.expression(a) for a in args[0])
        else:
            given = self.expression(args[0])
        outs = out if isinstance(out, list | tuple) else [out]
        made = rule(given, args[1:], [tuple(t.shape) for t in outs])
        for tensor, expression in zip(outs, made, strict=True):
            self._keep(tensor, expression)
        return out


Shapes = list[tuple[int, ...]]
Rule = Callable[[Any, tuple[Any, ...], Shapes], list[Expression]]


def _same(x: Expression, args: tuple[Any, ...], out: Shapes) -> list[Expression]:
    return [x]


def _reshape(x: Expression, args: tuple[Any, ...], out: Shapes) -> list[Expression]:
    return [reshape(x, out[0])]


def _swap(x: Expression, args: tuple[Any, ...], out: Shapes) -> list[Expression]:
    rank = len(x.shape)
    a, b = (args[0] % rank, args[1] % rank) if args else (0, 1)
    perm = list(range(rank))
    perm[a], perm[b] = perm[b], perm[a]
    return [permute(x, tuple(perm))]


def _permute(x: Expression, args: tuple[Any, ...], out: Shapes) -> list[Expression]:
    return [permute(x, tuple(i % len(x.shape) for i in args[0]))]


def _pieces(x: Expression, args: tuple[Any, ...], out: Shapes) -> list[Expression]:
    axis = (args[1] if len(args) > 1 else 0) % len(x.shape)
    made, start = [], 0
    for shape in out:
        made.append(cut(x, axis, start, start + shape[axis]))
        start += shape[axis]
    return made


def _slice(x: Expression, args: tuple[Any, ...], out: Shapes) -> list[Expression]:
    defaults: tuple[Any, ...] = (0, None, None, 1)
    axis, start, stop, step = (args + defaults[len(args) :])[:4]
    assert step == 1, "a weight conversion takes every other row"
    size = x.shape[axis]
    first, last, _ = slice(start, stop).indices(size)
    return [cut(x, axis, first, last)]


def _select(x: Expression, args: tuple[Any, ...], out: Shapes) -> list[Expression]:
    axis, index = args
    index %= x.shape[axis]
    return [reshape(cut(x, axis, index, index + 1), out[0])]


def _unbind(x: Expression, args: tuple[Any, ...], out: Shapes) -> list[Expression]:
    axis = args[0] if args else 0
    return [reshape(cut(x, axis, i, i + 1), shape) for i, shape in enumerate(out)]


def _cat(parts: tuple[Expression, ...], args: tuple[Any, ...], out: Shapes) -> list[Expression]:
    return [concat(parts, args[0] if args else 0)]


def _stack(parts: tuple[Expression, ...], args: tuple[Any, ...], out: Shapes) -> list[Expression]:
    return [stack(parts, args[0] if args else 0)]


RULES: dict[Any, Rule] = {
    aten.clone.default: _same,
    aten.detach.default: _same,
    aten.alias.default: _same,
    aten._to_copy.default: _same,
    aten.view.default: _reshape,
    aten._unsafe_view.default: _reshape,
    aten.reshape.default: _reshape,
    aten.unsqueeze.default: _reshape,
    aten.squeeze.default: _reshape,
    aten.squeeze.dim: _reshape,
    aten.transpose.int: _swap,
    aten.t.default: _swap,
    aten.permute.default: _permute,
    aten.split.Tensor: _pieces,
    aten.split_with_sizes.default: _pieces,
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    aten.unbind.int: _unbind,
    aten.cat.default: _cat,
    aten.stack.default: _stack,
}
