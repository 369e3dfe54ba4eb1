"""The sum of a token's experts: each result times its weight, always in the same order.

Memory decides: every result is read once. Knows nothing of how the results were made.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from qeff.backends.cuda.session.launch import release, settings, wait

WIDTH = 1024  # columns of one program


@triton.jit
def _sum(
    made, weight, residual, out, columns, weight_stride, residual_stride, out_stride,
    CHOSEN: tl.constexpr, WIDTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    release(PDL)
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < columns
    y = tl.zeros([WIDTH], tl.float32)
    wait(PDL)
    for place in tl.static_range(CHOSEN):
        share = tl.load(weight + token * weight_stride + place).to(tl.float32)
        row = made + (token * CHOSEN + place) * columns
        y += share * tl.load(row + column, mask=inside, other=0.0).to(tl.float32)
    if residual is not None:
        at = residual + token * residual_stride + column
        y += tl.load(at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * out_stride + column, y.to(out.dtype.element_ty), mask=inside)


def sum_pairs(
    made: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    residual: torch.Tensor | None = None,
) -> None:
    """``out`` [T, N] = Σ weight [T, C] · made [T · C, N] (+ residual)."""
    tokens, columns = out.shape
    chosen = weight.shape[1]
    assert made.shape == (tokens * chosen, columns) and made.is_contiguous(), "results of pairs"
    assert weight.stride(1) == 1 and out.stride(1) == 1, "rows lie in one piece"
    width = min(WIDTH, triton.next_power_of_2(columns))
    _sum[(tokens, triton.cdiv(columns, width))](
        made,
        weight,
        residual,
        out,
        columns,
        weight.stride(0),
        0 if residual is None else residual.stride(0),
        out.stride(0),
        CHOSEN=chosen,
        WIDTH=width,
        num_warps=4,
        **settings(out.device),
    )
