"""Rows of the cache in its formats, and the rotation and norm of what is written there.

``plain`` rows are of the type of their memory, ``fp8`` is E4M3 without a scale, ``mxint8`` has one
E8M0 scale for 32 dims. A row is written with all its dims by one program. Knows nothing of blocks,
sequences and masks.
"""

from __future__ import annotations

import triton
import triton.language as tl

PLAIN = 0
FP8 = 1
MXINT8 = 2

_FP8: tl.constexpr = tl.constexpr(FP8)
_MXINT8: tl.constexpr = tl.constexpr(MXINT8)
_SCALED: tl.constexpr = tl.constexpr(32)
_ROUNDS_TO_ONE: tl.constexpr = tl.constexpr(12582912.0)  # 1.5 * 2^23: a sum with it is whole
_ROUNDS_TO_2_9: tl.constexpr = tl.constexpr(24576.0)  # 1.5 * 2^14: a multiple of 2^-9


@triton.jit
def mx_unit(code):
    """One unit of an mxint8 element with this scale: 2^(code - 133), as float."""
    code = code.to(tl.int32)
    bits = tl.where(code > 6, (code - 6) << 23, 1 << (16 + tl.minimum(code, 6)))
    return tl.where(code == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit
def _load_scales(scales, rows, fits, WIDTH: tl.constexpr, PARTS: tl.constexpr):
    """Scale codes [N, PARTS] of rows; those of a row are one word where they fill it."""
    part = tl.arange(0, PARTS)
    if WIDTH == 4:
        # Words can be copied ahead of their use, bytes cannot.
        places = scales.to(tl.pointer_type(tl.int32)) + rows
        if fits is None:
            word = tl.load(places)
        else:
            word = tl.load(places, mask=fits, other=0)
        return (word[:, None] >> (part * 8)[None, :]) & 255
    else:
        known = (part < WIDTH)[None, :]
        if fits is not None:
            known = known & fits[:, None]
        return tl.load(scales + rows[:, None] * WIDTH + part[None, :], mask=known, other=0)


@triton.jit
def load_rows(
    codes, scales, rows, d, fits, D: tl.constexpr, FORMAT: tl.constexpr, DOT: tl.constexpr
):
    """Rows [N, dims] of a cache as numbers of type ``DOT``; 0 without ``fits`` [N] (None: all)."""
    places = codes + rows[:, None] * D + d[None, :]
    if fits is None:
        if d.shape[0] == D:
            x = tl.load(places)
        else:
            x = tl.load(places, mask=(d < D)[None, :], other=0.0)
    else:
        x = tl.load(places, mask=fits[:, None] & (d < D)[None, :], other=0.0)
    if FORMAT == _MXINT8:
        N: tl.constexpr = x.shape[0]
        PARTS: tl.constexpr = x.shape[1] // _SCALED
        WIDTH: tl.constexpr = (D + _SCALED - 1) // _SCALED
        # The scale of a row that does not fit may be anything in memory, even that of NaN.
        unit = mx_unit(_load_scales(scales, rows, fits, WIDTH, PARTS))
        # Products with powers of two are exact in bf16; f16 has too few of them.
        PRODUCT: tl.constexpr = tl.float32 if DOT == tl.float16 else DOT  # noqa: SIM300
        numbers = tl.reshape(x.to(PRODUCT), [N, PARTS, _SCALED]) * unit.to(PRODUCT)[:, :, None]
        return tl.reshape(numbers, [N, PARTS * _SCALED]).to(DOT)
    elif FORMAT == _FP8:
        return x.to(tl.float16).to(DOT)
    else:
        return x.to(DOT)


@triton.jit
def to_fp8_grid(x):
    """The nearest number of E4M3, ties to even, limited to its largest."""
    bits = x.to(tl.int32, bitcast=True)
    bits = (bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000
    normal = bits.to(tl.float32, bitcast=True)
    small = (x + _ROUNDS_TO_2_9) - _ROUNDS_TO_2_9
    y = tl.where(tl.abs(x) < 0.015625, small, normal)
    return tl.where(y > 448.0, 448.0, tl.where(y < -448.0, -448.0, y))


@triton.jit
def store_rows(codes, scales, rows, d, x, mask, D: tl.constexpr, FORMAT: tl.constexpr):
    """Write float rows [N, dims], of which dims from D on are zero; give what a reader will get."""
    places = codes + rows[:, None] * D + d[None, :]
    fits = mask[:, None] & (d < D)[None, :]
    if FORMAT == _MXINT8:
        N: tl.constexpr = x.shape[0]
        PARTS: tl.constexpr = x.shape[1] // _SCALED
        WIDTH: tl.constexpr = (D + _SCALED - 1) // _SCALED
        parted = tl.reshape(x, [N, PARTS, _SCALED])
        # The bits of magnitudes are ordered as the magnitudes are.
        magnitude = parted.to(tl.int32, bitcast=True) & 0x7FFFFFFF
        code = tl.max(magnitude, 2) >> 23  # [N, PARTS]
        # 64 / scale = 2^(133 - code) is no float for small codes, so it is applied in two halves.
        half = (133 - code) >> 1
        first = ((half + 127) << 23).to(tl.float32, bitcast=True)
        second = ((133 - code - half + 127) << 23).to(tl.float32, bitcast=True)
        whole = (parted * first[:, :, None]) * second[:, :, None]
        whole = (whole + _ROUNDS_TO_ONE) - _ROUNDS_TO_ONE
        whole = tl.minimum(tl.maximum(whole, -127.0), 127.0)
        whole = tl.where((code == 255)[:, :, None], 0.0, whole)
        part = tl.arange(0, PARTS)
        tl.store(
            scales + rows[:, None] * WIDTH + part[None, :],
            code.to(tl.uint8),
            mask=mask[:, None] & (part < WIDTH)[None, :],
        )
        flat = tl.reshape(whole, [N, PARTS * _SCALED])
        tl.store(places, flat.to(tl.int8), mask=fits)
        return tl.reshape(whole * mx_unit(code)[:, :, None], [N, PARTS * _SCALED])
    elif FORMAT == _FP8:
        x = to_fp8_grid(x)
        tl.store(places, x.to(tl.float8e4nv), mask=fits)
        return x
    else:
        kept = x.to(codes.dtype.element_ty)
        tl.store(places, kept, mask=fits)
        return kept.to(tl.float32)


@triton.jit
def angles(cos, sin, position, d, HALF: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Cosine and signed sine [1, dims] for each dim of a token at ``position``."""
    if HALF == 0:
        c = tl.full([1, 1], 1.0, tl.float32)
        s = tl.full([1, 1], 0.0, tl.float32)
    else:
        turns = d < 2 * HALF
        if INTERLEAVED:
            pair = d // 2
            is_first = d % 2 == 0
        else:
            pair = tl.where(d < HALF, d, d - HALF)
            is_first = d < HALF
        c = tl.load(cos + position * HALF + pair, mask=turns, other=1.0)[None, :]
        s = tl.load(sin + position * HALF + pair, mask=turns, other=0.0)
        s = tl.where(is_first, -s, s)[None, :]
    return c, s


@triton.jit
def turned(
    x, heads, mask, d, c, s, gain, eps,
    D: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Heads at ``x + heads`` as floats [N, dims], normalised and rotated; 0 without ``mask``."""
    fits = mask[:, None] & (d < D)[None, :]
    y = tl.load(x + heads[:, None] + d[None, :], mask=fits, other=0.0).to(tl.float32)
    if NORM:
        factor = 1.0 / tl.sqrt(tl.sum(y * y, 1) / D + eps)
        y = y * factor[:, None] * tl.load(gain + d, mask=d < D, other=0.0).to(tl.float32)[None, :]
    if HALF > 0:
        # The other number of a pair is read again: cheaper than moving it between threads.
        if INTERLEAVED:
            partner = d ^ 1
        else:
            partner = tl.where(d < HALF, d + HALF, d - HALF)
        turns = d < 2 * HALF
        z = tl.load(x + heads[:, None] + partner[None, :], mask=fits & turns[None, :], other=0.0)
        z = z.to(tl.float32)
        if NORM:
            other = tl.load(gain + partner, mask=turns, other=0.0).to(tl.float32)
            z = z * factor[:, None] * other[None, :]
        y = y * c + z * s
    return y
