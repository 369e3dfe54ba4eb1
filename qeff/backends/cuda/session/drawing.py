"""Random matrices, drawn where they are used: for measuring a model that nobody has downloaded.

Values are about as large as a model's are when its training begins, in any format. The same name
gives the same numbers on one machine.
"""

from __future__ import annotations

import zlib

import torch

SPREAD = 0.02  # standard deviation
_SEED = 0x51EFF
# Codes of q8_0 and q4_0 are drawn evenly; these are their standard deviations.
_EVEN = {"q8_0": 73.9, "q4_0": 4.61}
_EXPONENT = {"mxfp4": 120, "mxfp6": 119, "mxfp8": 121}  # E8M0, for elements drawn evenly
# E4M3: sign and mantissa are drawn, the exponent's bits are those of 0.5 to 2, so none is NaN.
_E4M3_DRAWN, _E4M3_FIXED = 0x8F, 0x30
_PIECE = 1 << 28  # values that are drawn at once


def draw(name: str, form: str, codes: torch.Tensor, scales: torch.Tensor | None) -> None:
    """Fill a matrix with random values."""
    generator = torch.Generator(codes.device)
    generator.manual_seed(_SEED ^ zlib.crc32(name.encode()))
    if scales is None:
        flat = codes.view(-1)
        for start in range(0, flat.numel(), _PIECE):
            flat[start : start + _PIECE].normal_(0, SPREAD, generator=generator)
        return
    data = codes.view(torch.uint8).view(-1)
    whole = data[: data.numel() // 8 * 8].view(torch.int64)
    whole.random_(-(1 << 63), None, generator=generator)
    data[whole.numel() * 8 :] = 0
    if form in ("fp8", "mxfp8"):
        data.bitwise_and_(_E4M3_DRAWN).bitwise_or_(_E4M3_FIXED)
    if form == "fp8":
        scales.fill_(SPREAD)
    elif form in _EVEN:
        scales.fill_(SPREAD / _EVEN[form])
    else:
        scales.fill_(_EXPONENT[form])
