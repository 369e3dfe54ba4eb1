"""Activations inside kernels, and the product of an activated gate with the values beside it.

Every kernel with an activation takes its name as a constant and calls :func:`activate`; the names
are those of ``qeff.ops.functions.ACTIVATIONS``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from qeff.backends.cuda.session.launch import release, settings, wait

WIDTH = 1024  # columns of one program


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)) of f32, without overflow."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, small) / (1.0 + small)


@triton.jit
def tanh(x):
    """The hyperbolic tangent of f32."""
    small = tl.exp(-2.0 * tl.abs(x))
    y = (1.0 - small) / (1.0 + small)
    return tl.where(x >= 0, y, -y)


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """The activation of that name, of f32."""
    if ACTIVATION == "silu":
        y = x * sigmoid(x)
    elif ACTIVATION == "gelu":
        y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":
        y = 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    elif ACTIVATION == "relu":
        y = tl.maximum(x, 0.0)
    elif ACTIVATION == "relu2":
        y = tl.maximum(x, 0.0)
        y = y * y
    elif ACTIVATION == "sigmoid":
        y = sigmoid(x)
    else:
        tl.static_assert(ACTIVATION == "tanh", "an activation without a kernel")
        y = tanh(x)
    return y


@triton.jit
def _gate(
    product, residual, out,
    columns, product_stride, residual_stride, out_stride,
    ACTIVATION: tl.constexpr, WIDTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    release(PDL)
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < columns
    row = product + token * product_stride
    wait(PDL)
    gate = tl.load(row + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(row + columns + column, mask=inside, other=0.0).to(tl.float32)
    y = activate(gate, ACTIVATION) * up
    if residual is not None:
        place = residual + token * residual_stride + column
        y += tl.load(place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * out_stride + column, y.to(out.dtype.element_ty), mask=inside)


def gated(
    product: torch.Tensor,
    activation: str,
    out: torch.Tensor,
    residual: torch.Tensor | None = None,
) -> None:
    """Of a product [T, 2M]: ``out`` [T, M] = act(first half) * second half (+ residual)."""
    tokens, columns = out.shape
    assert product.shape == (tokens, 2 * columns), "gate and up lie side by side"
    if not tokens:
        return
    _gate[(tokens, triton.cdiv(columns, WIDTH))](
        product,
        residual,
        out,
        columns,
        product.stride(0),
        0 if residual is None else residual.stride(0),
        out.stride(0),
        ACTIVATION=activation,
        WIDTH=WIDTH,
        num_warps=4,
        **settings(out.device),
    )
