"""Packed codes to numbers, inside kernels: the inverse of ``backends/cuda/layout``.

``code_pairs`` makes bf16 numbers of whole words with a few instructions for two of them, scaled by
a power of two (``POWER``) so that the bits of MX elements need no more than to be put in place; it
exists on the GPU only. ``one_block`` does the same for one block of a group in plain Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl

BLOCKS = {"q8_0": 4, "q4_0": 8, "mxfp8": 4, "mxfp6": 8, "mxfp4": 8}  # of a group
POWER = {"q8_0": 0, "q4_0": 0, "mxfp8": 120, "mxfp6": 126, "mxfp4": 126}
WORDS = 32  # of a group


def _four_bits(bodies: list[str], setup: str = "") -> str:
    """Assembly for two words of four codes; ``{w}`` is the word, ``{o}`` the number's register."""
    lines = [
        body.format(w=f"${8 + word}", o=f"${4 * word + place}", turn=8 * word + 2 * place)
        for word in range(2)
        for place, body in enumerate(bodies)
    ]
    return "{ .reg .b32 t, u; " + setup + " ".join(lines) + " }"


def _q4_0() -> str:
    # 0x4300 with a code in its lowest bits is 128 + code; 0x4308 is 136.
    first = "lop3.b32 t, {w}, 0x000f000f, 0x43004300, 0xEA; sub.rn.bf16x2 {o}, t, c;"
    others = [f"shr.u32 t, {{w}}, {4 * place}; " + first.replace("t, {w}", "t, t", 1)
              for place in range(1, 4)]  # fmt: skip
    return _four_bits([first, *others], ".reg .b32 c; mov.b32 c, 0x43084308; ")


def _mxfp4() -> str:
    in_place = "and.b32 {o}, {w}, 0x81C081C0;"
    shifted = "shl.b32 t, {{w}}, {}; and.b32 {{o}}, t, 0x81C081C0;"
    last = (
        "shl.b32 t, {w}, 1; and.b32 t, t, 0x80008000; shr.u32 u, {w}, 5;"
        "lop3.b32 t, u, 0x01000100, t, 0xEA; shr.u32 u, {w}, 4;"
        "lop3.b32 {o}, u, 0x00C000C0, t, 0xEA;"
    )
    return _four_bits([in_place, shifted.format(3), shifted.format(6), last])


def _mxfp6() -> str:
    moves = ("shl.b32 u, {w}, 4;", "mov.b32 u, {w};", "shr.u32 u, {w}, 4;", "shr.u32 u, {w}, 8;")
    return _four_bits([
        "shf.l.wrap.b32 t, $10, $10, {turn}; and.b32 t, t, 0x81008100;"
        + move + " lop3.b32 {o}, u, 0x00F000F0, t, 0xEA;"
        for move in moves
    ])  # fmt: skip


def _eight_bits(low: str, high: str) -> str:
    lines = [
        body.format(w=f"${4 + word}", o=f"${2 * word + place}")
        for word in range(2)
        for place, body in enumerate((low, high))
    ]
    return "{ .reg .b32 t, u; " + " ".join(lines) + " }"


def _q8_0() -> str:
    # 128 + lower seven bits, less 128 or, for negative codes, 256.
    body = (
        "lop3.b32 u, {0}, 0x00800080, 0x43004300, 0xEA;"
        "lop3.b32 t, {0}, 0x007f007f, 0x43004300, 0xEA; sub.rn.bf16x2 {{o}}, t, u;"
    )
    return _eight_bits(body.format("{w}"), "shr.u32 t, {w}, 8; " + body.format("t"))


def _mxfp8() -> str:
    body = "shr.u32 u, {0}, 4; and.b32 u, u, 0x07F007F0; lop3.b32 {{o}}, {0}, 0x80008000, u, 0xEA;"
    return _eight_bits("shl.b32 t, {w}, 8; " + body.format("t"), body.format("{w}"))


_Q4_0 = tl.constexpr(_q4_0())
_MXFP4 = tl.constexpr(_mxfp4())
_MXFP6 = tl.constexpr(_mxfp6())
_Q8_0 = tl.constexpr(_q8_0())
_MXFP8 = tl.constexpr(_mxfp8())


@triton.jit
def _eight(words, ASM: tl.constexpr):
    """Two words of every lane to a pair of numbers of each of eight blocks."""
    return tl.inline_asm_elementwise(
        ASM,
        "=r,=r,=r,=r,=r,=r,=r,=r,r,r",
        [words],
        dtype=(
            tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16,
            tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16,
        ),
        is_pure=True,
        pack=2,
    )  # fmt: skip


@triton.jit
def _four(words, ASM: tl.constexpr):
    """Two words of every lane to a pair of numbers of each of four blocks."""
    return tl.inline_asm_elementwise(
        ASM,
        "=r,=r,=r,=r,r,r",
        [words],
        dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
        is_pure=True,
        pack=2,
    )


@triton.jit
def code_pairs(words, extra, FORMAT: tl.constexpr):
    """Numbers times 2^-POWER of every block of the words of a group, a tile of bf16 for each."""
    if FORMAT == "q4_0":
        made = _eight(words, _Q4_0)
    elif FORMAT == "mxfp4":
        made = _eight(words, _MXFP4)
    elif FORMAT == "mxfp6":
        made = tl.inline_asm_elementwise(
            _MXFP6,
            "=r,=r,=r,=r,=r,=r,=r,=r,r,r,r",
            [words, extra],
            dtype=(
                tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16,
                tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16,
            ),
            is_pure=True,
            pack=2,
        )  # fmt: skip
    elif FORMAT == "q8_0":
        made = _four(words, _Q8_0)
    else:
        made = _four(words, _MXFP8)
    return made


@triton.jit
def _from_half(bits, POWER: tl.constexpr):
    """The f16 of these bits times 2^POWER, as f32."""
    return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * (2.0**POWER)


@triton.jit
def one_block(codes, extra, k, J: tl.constexpr, FORMAT: tl.constexpr):
    """Numbers in f32 of block ``J`` of groups: ``codes`` and ``extra`` point at their words.

    ``k`` is the column in the block, of a shape that broadcasts against the pointers.
    """
    BLOCKS: tl.constexpr = 4 if FORMAT == "q8_0" or FORMAT == "mxfp8" else 8
    PLACE: tl.constexpr = J % (BLOCKS // 2)
    side = (k & 1) * 16
    word = tl.load(codes + (k & ~1) + J // (BLOCKS // 2))
    half = word >> side
    if FORMAT == "q8_0":
        value = ((half << (24 - 8 * PLACE)) >> 24).to(tl.float32)
    elif FORMAT == "q4_0":
        value = (((half >> (4 * PLACE)) & 15) - 8).to(tl.float32)
    elif FORMAT == "mxfp8":
        byte = (half >> (8 * PLACE)) & 255
        value = _from_half(((byte & 128) << 8) | ((byte & 127) << 7), 8)
    elif FORMAT == "mxfp4":
        if PLACE < 3:
            half = half << (3 * PLACE)
            bits = (half & 0x8000) | ((half & 0x01C0) << 3)
        else:
            bits = ((half << 1) & 0x8000) | ((half >> 2) & 0x0800) | ((half >> 1) & 0x0600)
        value = _from_half(bits, 14)
    else:
        more = tl.load(extra + (k >> 1))
        sign = (more >> ((15 + side - 2 * J) & 31)) & 1
        high = (more >> ((8 + side - 2 * J) & 31)) & 1
        rest = (half >> (4 * PLACE)) & 15
        value = _from_half((sign << 15) | (high << 11) | (rest << 7), 14)
    return value


@triton.jit
def group_numbers(
    codes, extra, k, BLOCKS: tl.constexpr, FORMAT: tl.constexpr, ASM: tl.constexpr
):  # fmt: skip
    """Numbers of every block of groups; the pointers are those of their first words.

    bf16 times 2^-POWER with ``ASM`` (``extra`` points at i16 then), else f32.
    """
    if ASM:
        words = tl.load(codes + k)
        more = words
        if FORMAT == "mxfp6":
            more = tl.load(extra + k)
        made = code_pairs(words, more, FORMAT)
    else:
        made = ()
        for j in tl.static_range(BLOCKS):
            made = made + (one_block(codes, extra, k, j, FORMAT),)  # noqa: RUF005
    return made


@triton.jit
def group_scales(scales, FORMAT: tl.constexpr):
    """The scales of a group as it lies: one or two words (the second only for q4_0)."""
    if FORMAT == "q4_0":
        first = tl.load(scales)
        second = tl.load(scales + 1)
    else:
        first = tl.load(scales)
        second = first
    return first, second


@triton.jit
def block_scale(first, second, J: tl.constexpr, FORMAT: tl.constexpr):
    """The scale of block ``J`` in f32."""
    if FORMAT == "q8_0" or FORMAT == "q4_0":
        word = first if J < 4 else second
        bits = (word >> (16 * (J % 4))).to(tl.int16)
        scale = bits.to(tl.float16, bitcast=True).to(tl.float32)
    else:
        exponent = ((first >> (8 * J)) & 255).to(tl.int32)
        bits = tl.maximum(exponent << 23, 0x00400000)  # 2^-127 for an exponent of 0
        scale = bits.to(tl.float32, bitcast=True)
    return scale
