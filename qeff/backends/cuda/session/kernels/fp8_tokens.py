"""Activations as e4m3 with one f32 scale a token, for scaled products of many tokens.

The largest magnitude of a token becomes the largest e4m3 number. A root mean square norm may stand
before it. Knows nothing of weights.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from qeff.backends.cuda.session.launch import release, settings, wait
from qeff.backends.cuda.session.matrix import Norm

LARGEST = 448.0  # of e4m3
_INTERPRETED: tl.constexpr = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def _to_e4m3(x, dtype: tl.constexpr):
    """The nearest numbers of e4m3."""
    if _INTERPRETED:  # which converts only numbers of the type without error
        bits = x.to(tl.int32, bitcast=True)
        bits += 0x7FFFF + ((bits >> 20) & 1)  # half of the last place, ties to even
        normal = (bits & -0x100000).to(tl.float32, bitcast=True)
        small = (x + 24576.0) - 24576.0  # whole steps of 2^-9
        x = tl.where(tl.abs(x) < 0.015625, small, normal)
    return x.to(dtype)


@triton.jit
def _quantise(
    x, gain, codes, scales,
    columns, x_stride, codes_stride, eps,
    LARGEST: tl.constexpr, WIDTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    release(PDL)
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    inside = column < columns
    if gain is not None:
        factor = tl.load(gain + column, mask=inside, other=0.0).to(tl.float32)
    wait(PDL)
    y = tl.load(x + token * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    if gain is not None:
        y = y * tl.rsqrt(tl.sum(y * y) / columns + eps) * factor
    most = tl.max(tl.abs(y))
    scale = tl.where(most > 0, most / LARGEST, 1.0)
    # The quotient may be a rounding above the largest number; the type has no infinity to go to.
    code = _to_e4m3(tl.minimum(tl.maximum(y / scale, -LARGEST), LARGEST), codes.dtype.element_ty)
    tl.store(codes + token * codes_stride + column, code, mask=inside)
    tl.store(scales + token, scale)


def quantise_tokens(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, norm: Norm | None = None
) -> None:
    """The (normalised) rows of x [T, width] as ``codes`` e4m3 [T, width] and ``scales`` f32 [T]."""
    tokens, columns = x.shape
    assert codes.dtype == torch.float8_e4m3fn and scales.is_contiguous()
    if not tokens:
        return
    width = triton.next_power_of_2(columns)
    _quantise[(tokens,)](
        x,
        None if norm is None else norm.gain,
        codes,
        scales,
        columns,
        x.stride(0),
        codes.stride(0),
        0.0 if norm is None else norm.eps,
        LARGEST=LARGEST,
        WIDTH=width,
        num_warps=min(max(width // 512, 1), 16),
        **settings(x.device),
    )
