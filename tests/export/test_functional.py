"""In-place ops of a traced program become ops that make new values, or are left to torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from qeff.export.functional import is_in_place, make_functional


def add(x: Tensor) -> Tensor:
    y = x * 2
    y += 1
    return y + x


def chain(x: Tensor) -> Tensor:
    y = (x * 2).view(-1)
    y.mul_(3).add_(1)
    return y


def fill_slices(x: Tensor) -> Tensor:
    out = x.new_empty(x.shape[0], 6)
    out[:, :4] = x
    out[:, 4:] = x[:, :2] + 1
    return out


def add_to_slice(x: Tensor) -> Tensor:
    y = x * 2
    y[1:] += 5
    return y


def seen_through_a_view(x: Tensor) -> Tensor:
    y = x * 2
    view = y[0]
    y += 1
    return view + y


PLAIN = [add, chain, fill_slices, add_to_slice]


class Wrap(torch.nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize("function", PLAIN)
def test_rewritten(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(3, 4)
    program = torch.export.export(Wrap(function), (x,), strict=False)
    assert any(is_in_place(node) for node in program.graph.nodes)
    assert make_functional(program.graph)
    assert not any(is_in_place(node) for node in program.graph.nodes)
    program.graph_module.recompile()
    torch.testing.assert_close(program.module()(x), function(x))


def test_memory_seen_twice_is_left_to_torch() -> None:
    program = torch.export.export(Wrap(seen_through_a_view), (torch.randn(3, 4),), strict=False)
    assert not make_functional(program.graph)
