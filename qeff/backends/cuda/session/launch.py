"""How kernels are launched: compiled on a GPU, interpreted elsewhere.

On Hopper a kernel may start while the one before it ends (programmatic dependent launch): it loads
weights, which nothing writes, then waits. Kernels take ``PDL`` as a constant and call
:func:`wait` before they read or write anything that another kernel touches, and
:func:`release` where the next one may start.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

HOPPER = (9, 0)


@cache
def overlaps(device: torch.device) -> bool:
    """Whether kernels on the device may be launched with ``PDL``."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= HOPPER


def settings(device: torch.device) -> dict[str, bool]:
    """The keyword arguments that every launch of a kernel with ``PDL`` takes."""
    return {"PDL": True, "launch_pdl": True} if overlaps(device) else {"PDL": False}


@triton.jit
def wait(PDL: tl.constexpr):
    """Go on once every kernel before this one is done."""
    if PDL:
        gdc_wait()


@triton.jit
def release(PDL: tl.constexpr):
    """Let the next kernel start, as far as there is room beside this one."""
    if PDL:
        gdc_launch_dependents()


@triton.jit
def prefetch(place, inside, PDL: tl.constexpr):
    """Ask for lines of weights, which no kernel writes, before the kernel waits."""
    if PDL:
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.s32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.u32 $0, 0; }",
            "=r,l,r",
            [place.to(tl.int64), inside.to(tl.int32)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
