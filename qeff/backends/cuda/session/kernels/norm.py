"""Normalisation of rows: root mean square, or mean and deviation.

One program a row, all in float32. Knows nothing of products.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from qeff.backends.cuda.session.launch import release, settings, wait


@triton.jit
def _normalise(
    x, gain, bias, out, columns, x_stride, out_stride, eps,
    LAYER: tl.constexpr, WIDTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    release(PDL)
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    inside = column < columns
    if gain is not None:  # weights, which nothing writes
        scale = tl.load(gain + column, mask=inside, other=0.0).to(tl.float32)
    if bias is not None:
        shift = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    wait(PDL)
    y = tl.load(x + token * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    if LAYER:
        y = tl.where(inside, y - tl.sum(y) / columns, 0.0)
    y *= tl.rsqrt(tl.sum(y * y) / columns + eps)
    if gain is not None:
        y *= scale
    if bias is not None:
        y += shift
    tl.store(out + token * out_stride + column, y.to(out.dtype.element_ty), mask=inside)


def normalise(
    x: torch.Tensor,
    gain: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    out: torch.Tensor,
    *,
    is_layer: bool = False,
) -> None:
    """The rms norm of x [T, width], or its layer norm."""
    tokens, columns = x.shape
    assert out.shape == x.shape and x.stride(1) == out.stride(1) == 1
    if not tokens:
        return
    width = triton.next_power_of_2(columns)
    _normalise[(tokens,)](
        x,
        gain,
        bias,
        out,
        columns,
        x.stride(0),
        out.stride(0),
        eps,
        LAYER=is_layer,
        WIDTH=width,
        num_warps=min(max(width // 512, 1), 16),  # 8 to 16 elements a thread
        **settings(x.device),
    )
