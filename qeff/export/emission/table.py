"""The table of emission rules and the decorator that fills it.

Knows no op; the files beside it do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from qeff.export.emitter import Rule
from qeff.export.fxnode import Node

RULES: dict[Any, Rule] = {}
aten = torch.ops.aten


def rule(*targets: Any) -> Callable[[Rule], Rule]:
    """Register a function as the rule of these torch ops."""

    def register(function: Rule) -> Rule:
        for target in targets:
            assert target not in RULES, f"{target} has two rules"
            RULES[target] = function
        return function

    return register


def overloads(name: str, *wanted: str) -> list[Any]:
    """The overloads of an aten op that this version of torch has."""
    packet = getattr(aten, name)
    return [getattr(packet, item) for item in wanted if item in packet.overloads()]


def arg(node: Node, position: int, name: str, default: Any = None) -> Any:
    """An argument by place or by name."""
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(name, default)
