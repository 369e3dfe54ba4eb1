"""Rules for complex numbers, which ONNX lacks: a complex value is a pair of real ones.

Only what rotary tables need. Rules of real ops see pairs only through these.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch

from qeff.export.emission import elementwise, shape  # noqa: F401  (their rules are wrapped)
from qeff.export.emission.table import RULES, aten, rule
from qeff.export.emitter import Emitter, Rule
from qeff.export.fxnode import Node

Pair = tuple[ir.Value, ir.Value]


@rule(aten.polar.default)
def _polar(e: Emitter, node: Node) -> Pair:
    size, angle = (e.value(a) for a in node.args)
    return e.op("Mul", [size, e.op("Cos", [angle])]), e.op("Mul", [size, e.op("Sin", [angle])])


@rule(aten.real.default)
def _real(e: Emitter, node: Node) -> ir.Value:
    return e.values[node.args[0]][0]


@rule(aten.imag.default)
def _imag(e: Emitter, node: Node) -> ir.Value:
    return e.values[node.args[0]][1]


@rule(aten.view_as_real.default)
def _view_as_real(e: Emitter, node: Node) -> Pair:
    return e.values[node.args[0]]


def _is_pair(e: Emitter, value: Any) -> bool:
    return isinstance(value, Node) and isinstance(e.values.get(value), tuple)


def _with_pairs(plain: Rule, paired: Rule) -> Rule:
    def emit(e: Emitter, node: Node) -> Any:
        return (paired if _is_pair(e, node.args[0]) else plain)(e, node)

    return emit


def _scaled(e: Emitter, node: Node) -> Pair:
    factor = node.args[1]
    pair = e.values[node.args[0]]
    if factor == 1:
        return pair
    by = e.scalar(float(factor), torch.float32)
    return tuple(e.op("Mul", [part, by]) for part in pair)  # type: ignore[return-value]


def _part(e: Emitter, node: Node) -> ir.Value:
    return e.values[node.args[0]][node.args[2]]


for _target, _paired in (
    (aten.mul.Tensor, _scaled),
    (aten.select.int, _part),
    (aten.to.device, _view_as_real),
    (aten.to.dtype, _view_as_real),
    (aten.alias.default, _view_as_real),
    (aten.to.dtype_layout, _view_as_real),
):
    RULES[_target] = _with_pairs(RULES[_target], _paired)
