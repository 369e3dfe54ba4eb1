"""Counts the shared memory that kernels of large tiles would need; nothing is launched.

A process of its own: Triton decides when it is imported whether kernels are interpreted. Prints
one line of JSON: bytes by case. Started by ``test_cuda_shared.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from cuda_dry import Device
from triton.backends.nvidia import compiler
from triton.runtime.driver import driver

from qeff.backends.cuda import layout
from qeff.backends.cuda.session import launch
from qeff.backends.cuda.session.attention import AttentionSpec, Work, attend
from qeff.backends.cuda.session.cache import LayerCache
from qeff.backends.cuda.session.kernels import packed_few, packed_many
from qeff.backends.cuda.session.kernels.dense_few import Around
from qeff.backends.cuda.session.linear import Scratch, linear
from qeff.backends.cuda.session.matrix import Matrix, Norm
from qeff.backends.cuda.session.step_info import StepInfo

ROWS, COLUMNS = 8192, 4096
MULTIPROCESSORS = 132
CPU = torch.device("cpu")


class Known(Exception):
    """Stops a compiler that has laid out shared memory."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__(num_bytes)
        self.num_bytes = num_bytes


def stop(module: Any, *more: Any) -> None:
    """Stands for the step behind the one that lays it out."""
    raise Known(module.get_int_attr("ttg.shared"))


def needed(product: Callable[[], None]) -> int:
    """Bytes of a program of the one kernel that is launched."""
    try:
        product()
    except Known as known:
        return known.num_bytes
    raise AssertionError("the product compiled no kernel")


def packed(form: str) -> Matrix:
    shape = (ROWS, COLUMNS)
    codes = torch.empty(layout.codes_shape(form, shape), dtype=torch.uint8)
    kind = torch.float16 if form in ("q4_0", "q8_0") else torch.uint8
    return Matrix(form, shape, codes, torch.empty(layout.scales_shape(form, shape), dtype=kind))


def few(form: str, tokens: int) -> int:
    x, out = (torch.empty((tokens, width), dtype=torch.bfloat16) for width in (COLUMNS, ROWS))
    around = Around(Norm(torch.empty(COLUMNS, dtype=torch.bfloat16), 1e-5))
    return needed(lambda: packed_few.packed_few(x, packed(form), out, around))


def many(form: str, tokens: int) -> int:
    x, out = torch.empty((tokens, COLUMNS)), torch.empty((tokens, ROWS))
    return needed(lambda: packed_many.packed_many(x, packed(form), out))


def alike(tokens: int) -> int:
    """Of fp8 weights and f32 inputs, in the cut for any number of tokens."""
    x, out, norm = torch.empty((tokens, COLUMNS)), torch.empty((tokens, ROWS)), torch.empty(COLUMNS)
    codes = torch.empty((ROWS, COLUMNS), dtype=torch.float8_e4m3fn)
    matrix = Matrix("fp8", (ROWS, COLUMNS), codes, torch.empty(ROWS))
    more: dict[str, Any] = {"scratch": Scratch(CPU), "norm": Norm(norm, 1e-5)}
    return needed(lambda: linear(x, matrix, out, deterministic=True, **more))


def attention(key_dim: int, value_dim: int) -> int:
    """Of one token a sequence, whose keys and values an earlier layer wrote, in f32."""
    heads, tokens, ints = 4, 2, torch.zeros(3, dtype=torch.int32)
    spec = AttentionSpec(1.0, heads, 1, key_dim, value_dim)
    q, out = torch.empty((tokens, heads, key_dim)), torch.empty((tokens, heads, value_dim))
    cache = LayerCache("f32", 1, key_dim, value_dim)
    cache.allocate(2, CPU)
    info = StepInfo(
        num_tokens=tokens,
        num_spans=tokens,
        num_rows=tokens,
        tokens=ints.long(),
        positions=ints,
        owners=ints,
        slots=ints,
        starts=ints,
        firsts=ints,
        tables=torch.zeros((tokens, 1), dtype=torch.int32),
        rows=ints.long(),
        ancestors=None,
        longest=64,
        is_decode=True,
    )
    work = Work.make([spec], tokens, torch.float32, CPU)
    return needed(lambda: attend(spec, (q, None, None), cache, info, out, work))


def main() -> None:
    """Print what each case needs on a Hopper GPU."""
    driver.set_active(Device())
    compiler.llvm.to_module = stop
    compiler.nvidia.passes.ttgpuir.add_to_llvmir = lambda *_: None  # takes most of the time
    torch.Tensor.is_cuda = property(lambda _: True)
    launch.overlaps = lambda device: True
    packed_few.multiprocessors = lambda device: MULTIPROCESSORS
    found = {
        "mxfp6, few tokens": few("mxfp6", 16),
        "mxfp6 and f32, many tokens": many("mxfp6", 64),
        "q4_0 and f32, many tokens": many("q4_0", 64),
        "fp8 and f32, any tokens": alike(16),
        "attention in f32": attention(576, 512),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
