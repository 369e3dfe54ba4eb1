"""What products of experts have around them: rows of one expert, and the gate behind the sums.

The matrices of all experts lie one below the other (:class:`Stack`). In a tile of rows those of
gate and up take turns, so that what belongs together is side by side. Knows no format and no cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from qeff.backends.cuda.session.kernels.gated import activate, sigmoid
from qeff.backends.cuda.session.matrix import Matrix


@dataclass(frozen=True, slots=True)
class Stack:
    """One matrix for each expert."""

    matrix: Matrix  # [experts · rows, columns]
    experts: int
    bias: torch.Tensor | None = None  # [experts, rows]

    @property
    def rows(self) -> int:
        """Of one expert."""
        return self.matrix.shape[0] // self.experts

    @property
    def columns(self) -> int:
        """Inputs."""
        return self.matrix.shape[1]


@dataclass(frozen=True, slots=True)
class Gate:
    """What follows a product: nothing, an activation, or an activated gate times what is beside it.

    The activation ``swiglu_clamped`` is that of ``qeff.ops.moe``; ``alpha`` and ``limit`` are its.
    """

    how: str = "none"  # half: gate rows before up rows; interleaved: in turn; none: no gate
    activation: str | None = None
    alpha: float = 0.0
    limit: float = 0.0

    @property
    def turns(self) -> int:
        """Rows for one output."""
        return 1 if self.how == "none" else 2

    def constants(self) -> dict[str, Any]:
        """As kernels take it."""
        return {
            "HOW": self.how,
            "ACTIVATION": self.activation,
            "ALPHA": self.alpha,
            "LIMIT": self.limit,
        }


def pair_sizes(
    x: torch.Tensor, stack: Stack, gate: Gate, index: torch.Tensor, out: torch.Tensor
) -> tuple[int, ...]:
    """Sizes and strides of a product of pairs, as its kernels take them."""
    assert x.shape[1] == stack.columns and x.stride(1) == out.stride(1) == 1, "rows in one piece"
    assert out.shape == (index.numel(), stack.rows // gate.turns), "an output for each row or two"
    sizes = stack.experts, out.shape[1], stack.rows, index.shape[1]
    return *sizes, x.stride(0), index.stride(0), out.stride(0)


@triton.jit
def own_rows(m, outputs, HOW: tl.constexpr):
    """The rows of an expert at places ``m``; places behind the last have its rows."""
    if HOW == "half":
        row = tl.minimum(m // 2, outputs - 1) + (m % 2) * outputs
    elif HOW == "interleaved":
        row = tl.minimum(m // 2, outputs - 1) * 2 + m % 2
    else:
        row = tl.minimum(m, outputs - 1)
    return row


@triton.jit
def chosen_expert(index, pair, chosen, stride, experts):
    """The expert of a pair of token and place; one that does not exist becomes one that does."""
    expert = tl.load(index + (pair // chosen).to(tl.int64) * stride + pair % chosen)
    return tl.minimum(tl.maximum(expert, 0), experts - 1).to(tl.int64)


@triton.jit
def _through_gate(
    y, COUNT: tl.constexpr, ROWS: tl.constexpr,
    HOW: tl.constexpr, ACTIVATION: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    """Of f32 [COUNT, ROWS] the outputs: as many, or with a gate half as many."""
    if HOW == "none":
        if ACTIVATION is not None:
            y = activate(y, ACTIVATION)
    else:
        gate, up = tl.split(tl.reshape(y, [COUNT, ROWS // 2, 2]))
        if ACTIVATION == "swiglu_clamped":
            gate = tl.minimum(gate, LIMIT)
            up = tl.minimum(tl.maximum(up, -LIMIT), LIMIT)
            y = (up + 1.0) * gate * sigmoid(ALPHA * gate)
        else:
            y = activate(gate, ACTIVATION) * up
    return y


@triton.jit
def store_outputs(
    y, bias, row, out, target, is_pair, block, outputs, out_stride,
    COUNT: tl.constexpr, ROWS: tl.constexpr,
    HOW: tl.constexpr, ACTIVATION: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    """Bias and gate of sums f32 [COUNT, ROWS] of a block of rows, stored in rows ``target``."""
    OUTPUTS: tl.constexpr = ROWS if HOW == "none" else ROWS // 2
    if bias is not None:
        y += tl.load(bias + row).to(tl.float32)[None, :]
    y = _through_gate(y, COUNT, ROWS, HOW, ACTIVATION, ALPHA, LIMIT)
    output = block * OUTPUTS + tl.arange(0, OUTPUTS)
    place = out + target[:, None] * out_stride + output[None, :]
    inside = is_pair[:, None] & (output < outputs)[None, :]
    tl.store(place, y.to(out.dtype.element_ty), mask=inside)
