"""Products of few tokens with plain and e4m3 weights: one launch with all that stands around them.

Memory decides: every weight is read once, wide and early. ``_lanes`` multiplies and adds in
float32; its first tile of weights (the whole rows where they are short) is on its way before the
kernel waits for the one before it. ``_tiles`` gives the products of up to 64 tokens to the tensor
cores, the weights as first operand. :class:`Plan` says which, and in what tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from qeff.backends.cuda.session.kernels.gated import activate
from qeff.backends.cuda.session.launch import prefetch, release, settings, wait
from qeff.backends.cuda.session.matrix import Matrix, Norm

LINE = 128  # bytes that memory fetches at once
MOST_LINES = 64  # of a row that ``_tiles`` asks for before it waits
_INTERPRETED: tl.constexpr = tl.constexpr(triton.knobs.runtime.interpret)


@dataclass(frozen=True, slots=True)
class Plan:
    """How one product is cut. ``stages`` 0: ``_lanes``; else ``_tiles`` with a queue that deep."""

    rows: int  # outputs of a program
    columns: int  # inputs of a tile
    warps: int
    stages: int = 0
    tokens: int = 16  # of a program of ``_tiles``


@dataclass(frozen=True, slots=True)
class Around:
    """What stands before and behind a product."""

    norm: Norm | None = None
    bias: torch.Tensor | None = None
    residual: torch.Tensor | None = None
    activation: str | None = None
    # Packed products of one token: the next ones read the same input, and so did the one before.
    leads: bool = False
    joins: bool = False


@triton.jit
def _fetch(place, inside, EVEN: tl.constexpr):
    """A tile that is read once: it need not stay in the cache."""
    if EVEN:
        tile = tl.load(place, eviction_policy="evict_first")
    else:
        tile = tl.load(place, mask=inside, other=0.0, eviction_policy="evict_first")
    return tile


@triton.jit
def _finish(
    y, up, squares, row, token, rows, tokens,
    scales, bias, residual, out, residual_stride, out_stride, eps,
    K: tl.constexpr, NORMED: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Scales, norm, bias, activation and residual of sums [rows, tokens], stored."""
    in_rows = row < rows
    if scales is not None:
        y *= tl.load(scales + row, mask=in_rows, other=0.0)[:, None]
        if ACTIVATION is not None:
            up *= tl.load(scales + rows + row, mask=in_rows, other=0.0)[:, None]
    if NORMED:
        factor = tl.rsqrt(squares / K + eps)[None, :]
        y *= factor
        if ACTIVATION is not None:
            up *= factor
    if bias is not None:
        y += tl.load(bias + row, mask=in_rows, other=0.0).to(tl.float32)[:, None]
        if ACTIVATION is not None:
            up += tl.load(bias + rows + row, mask=in_rows, other=0.0).to(tl.float32)[:, None]
    if ACTIVATION is not None:
        y = activate(y, ACTIVATION) * up
    inside = in_rows[:, None] & (token < tokens)[None, :]
    if residual is not None:
        place = residual + token.to(tl.int64)[None, :] * residual_stride + row[:, None]
        y += tl.load(place, mask=inside, other=0.0).to(tl.float32)
    place = out + token.to(tl.int64)[None, :] * out_stride + row[:, None]
    tl.store(place, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _input(x, gain, column, K: tl.constexpr, EVEN: tl.constexpr):
    """Inputs [columns] of one token in f32, and the same times the norm's gain."""
    if EVEN:
        value = tl.load(x + column).to(tl.float32)
    else:
        value = tl.load(x + column, mask=column < K, other=0.0).to(tl.float32)
    scaled = value
    if gain is not None:
        if EVEN:
            scaled = value * tl.load(gain + column).to(tl.float32)
        else:
            scaled = value * tl.load(gain + column, mask=column < K, other=0.0).to(tl.float32)
    return value, scaled


@triton.jit
def _follow(place, column, K: tl.constexpr):
    """The tile behind the one at hand, which is on its way while that is multiplied."""
    return tl.load(place, mask=(column < K)[None, :], other=0.0, eviction_policy="evict_first")


@triton.jit
def _one_token(
    x, gain, w, v, place, beside, column,
    K: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Sums of one token's products: each lane has its own until the end."""
    EVEN: tl.constexpr = K % COLUMNS == 0
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    sums_up = tl.zeros([ROWS, COLUMNS], tl.float32)
    squares = tl.zeros([COLUMNS], tl.float32)
    for start in range(0, K, COLUMNS):
        value, scaled = _input(x, gain, start + column, K, EVEN)
        after = start + COLUMNS
        now = w
        now_up = v
        if K > COLUMNS:
            w = _follow(place + after, after + column, K)
            if GATED:
                v = _follow(beside + after, after + column, K)
        sums += now.to(tl.float32) * scaled[None, :]
        if GATED:
            sums_up += now_up.to(tl.float32) * scaled[None, :]
        if gain is not None:
            squares += value * value
    y = tl.sum(sums, 1)[:, None]
    up = y
    if GATED:
        up = tl.sum(sums_up, 1)[:, None]
    return y, up, tl.sum(squares, 0, keep_dims=True)


@triton.jit
def _some_tokens(
    x, gain, w, v, place, beside, column, tokens, x_stride,
    K: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    GATED: tl.constexpr,
):  # fmt: skip
    """Sums of several tokens' products, one token after the other over the tile at hand."""
    EVEN: tl.constexpr = K % COLUMNS == 0
    token = tl.arange(0, TOKENS)
    y = tl.zeros([ROWS, TOKENS], tl.float32)
    up = tl.zeros([ROWS, TOKENS], tl.float32)
    squares = tl.zeros([TOKENS], tl.float32)
    for start in range(0, K, COLUMNS):
        after = start + COLUMNS
        now = w
        now_up = v
        if K > COLUMNS:
            w = _follow(place + after, after + column, K)
            if GATED:
                v = _follow(beside + after, after + column, K)
        for t in tl.static_range(TOKENS):
            own = x + tl.minimum(t, tokens - 1).to(tl.int64) * x_stride
            value, scaled = _input(own, gain, start + column, K, EVEN)
            is_own = token == t
            part = tl.sum(now.to(tl.float32) * scaled[None, :], 1)
            y += tl.where(is_own[None, :], part[:, None], 0.0)
            if GATED:
                part = tl.sum(now_up.to(tl.float32) * scaled[None, :], 1)
                up += tl.where(is_own[None, :], part[:, None], 0.0)
            if gain is not None:
                squares += tl.where(is_own, tl.sum(value * value, 0), 0.0)
    return y, up, squares


@triton.jit(do_not_specialize=["rows", "tokens"])
def _lanes(
    x, weights, scales, gain, bias, residual, out,
    rows, tokens, x_stride, residual_stride, out_stride, eps,
    K: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ACTIVATION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    release(PDL)
    EVEN: tl.constexpr = K % COLUMNS == 0
    GATED: tl.constexpr = ACTIVATION is not None
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    token = tl.arange(0, TOKENS)
    # Rows past the end read the last one and are not stored.
    place = weights + tl.minimum(row, rows - 1).to(tl.int64)[:, None] * K + column[None, :]
    beside = place
    w = _fetch(place, (column < K)[None, :], EVEN)
    v = w
    if GATED:
        beside = place + rows.to(tl.int64) * K
        v = _fetch(beside, (column < K)[None, :], EVEN)
    wait(PDL)
    if TOKENS == 1:
        y, up, squares = _one_token(
            x, gain, w, v, place, beside, column, K, ROWS, COLUMNS, GATED
        )  # fmt: skip
    else:
        y, up, squares = _some_tokens(
            x, gain, w, v, place, beside, column, tokens, x_stride,
            K, TOKENS, ROWS, COLUMNS, GATED,
        )  # fmt: skip
    _finish(
        y, up, squares, row, token, rows, tokens,
        scales, bias, residual, out, residual_stride, out_stride, eps,
        K, gain is not None, ACTIVATION,
    )  # fmt: skip


@triton.jit
def _add_product(w, inputs, sums):
    """Sums [rows, tokens] and the products of weights [rows, columns], inputs [tokens, columns]."""
    if _INTERPRETED:  # which has no product of bf16
        sums = tl.dot(w.to(tl.float32), tl.trans(inputs.to(tl.float32)), sums)
    else:
        sums = tl.dot(w, tl.trans(inputs), sums, input_precision="ieee")
    return sums


@triton.jit(do_not_specialize=["rows", "tokens"])
def _tiles(
    x, weights, scales, gain, bias, residual, out,
    rows, tokens, x_stride, residual_stride, out_stride, eps,
    K: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    STAGES: tl.constexpr, LINES: tl.constexpr, PER_LINE: tl.constexpr,
    ACTIVATION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    release(PDL)
    EVEN: tl.constexpr = K % COLUMNS == 0
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    begin = weights + tl.minimum(row, rows - 1).to(tl.int64)[:, None] * K
    line = tl.arange(0, LINES) * PER_LINE
    prefetch(begin + line[None, :], (line < K)[None, :] & (row < rows)[:, None], PDL)
    if ACTIVATION is not None:
        aside = begin + rows.to(tl.int64) * K
        prefetch(aside + line[None, :], (line < K)[None, :] & (row < rows)[:, None], PDL)
    wait(PDL)
    own = x + token.to(tl.int64)[:, None] * x_stride
    is_token = (token < tokens)[:, None]
    y = tl.zeros([ROWS, TOKENS], tl.float32)
    up = tl.zeros([ROWS, TOKENS], tl.float32)
    squares = tl.zeros([TOKENS, COLUMNS], tl.float32)
    for start in tl.range(0, K, COLUMNS, num_stages=STAGES):
        at = start + column
        inside = (at < K)[None, :]
        w = _fetch(begin + at[None, :], inside, EVEN).to(x.dtype.element_ty)
        mask = is_token if EVEN else is_token & inside
        inputs = tl.load(own + at[None, :], mask=mask, other=0.0)
        if gain is not None:
            value = inputs.to(tl.float32)
            squares += value * value
            if EVEN:
                factor = tl.load(gain + at).to(tl.float32)
            else:
                factor = tl.load(gain + at, mask=at < K, other=0.0).to(tl.float32)
            inputs = (value * factor[None, :]).to(x.dtype.element_ty)
        y = _add_product(w, inputs, y)
        if ACTIVATION is not None:
            v = _fetch(aside + at[None, :], inside, EVEN).to(x.dtype.element_ty)
            up = _add_product(v, inputs, up)
    _finish(
        y, up, tl.sum(squares, 1), row, token, rows, tokens,
        scales, bias, residual, out, residual_stride, out_stride, eps,
        K, gain is not None, ACTIVATION,
    )  # fmt: skip


def few(x: torch.Tensor, matrix: Matrix, out: torch.Tensor, around: Around, plan: Plan) -> None:
    """The product and what stands around it, cut as the plan says."""
    tokens, columns = x.shape
    rows = out.shape[1]
    assert matrix.shape == (rows * (1 if around.activation is None else 2), columns)
    assert matrix.codes.shape == matrix.shape and matrix.codes.is_contiguous()
    assert x.stride(1) == out.stride(1) == 1, "features lie side by side"
    residual = around.residual
    operands = (
        x,
        matrix.codes,
        matrix.scales,
        None if around.norm is None else around.norm.gain,
        around.bias,
        residual,
        out,
        rows,
        tokens,
        x.stride(0),
        0 if residual is None else residual.stride(0),
        out.stride(0),
        0.0 if around.norm is None else around.norm.eps,
    )
    cut: dict[str, Any] = {"K": columns, "ROWS": plan.rows, "COLUMNS": plan.columns}
    cut |= {"ACTIVATION": around.activation, "num_warps": plan.warps, **settings(x.device)}
    row_tiles = triton.cdiv(rows, plan.rows)
    if not plan.stages:
        _lanes[(row_tiles,)](*operands, TOKENS=triton.next_power_of_2(tokens), num_stages=1, **cut)
        return
    per_line = LINE // matrix.codes.element_size()
    lines = triton.next_power_of_2(triton.cdiv(columns, per_line))
    _tiles[(triton.cdiv(tokens, plan.tokens), row_tiles)](
        *operands,
        TOKENS=plan.tokens,
        STAGES=plan.stages,
        LINES=min(lines, MOST_LINES),
        PER_LINE=per_line,
        num_stages=plan.stages,
        **cut,
    )
