"""The product of tokens with a matrix and all that stands around it, on whichever path is fastest.

Few tokens: one kernel does everything, and memory is its limit. Many tokens: norm, product
(cuBLAS) and activation are kernels of their own. Knows formats, not how packed codes lie.
"""

from __future__ import annotations

from typing import TypedDict, Unpack

import torch
import triton

from qeff.backends.cuda.session.kernels.dense_few import Around, Plan, few
from qeff.backends.cuda.session.kernels.fp8_tokens import quantise_tokens
from qeff.backends.cuda.session.kernels.gated import gated
from qeff.backends.cuda.session.kernels.norm import normalise
from qeff.backends.cuda.session.kernels.packed_few import packed_few
from qeff.backends.cuda.session.kernels.packed_many import packed_many
from qeff.backends.cuda.session.kernels.unpack import unpack
from qeff.backends.cuda.session.matrix import Matrix, Norm

# Up to so many tokens packed products are one launch.
FEW_TOKENS = 16
# Up to so many tokens one launch is faster than cuBLAS and the kernels around it (docs/cuda.md).
DENSE_TOKENS = 1
# Up to so many tokens it pays to unpack in registers; with more, a matrix is unpacked once: gate
# and up of 8B in mxfp4 take 61 µs with 64 tokens and 203 with 256, cuBLAS 64 and 91 without
# unpacking (H200).
UNPACKED_TOKENS = 64
# Up to so many tokens multiply-adds keep up with memory; with more, tensor cores are needed.
LANE_TOKENS = 2
# How much of the weights a program has on its way, as measured best: columns of a matrix up to
# which short rows stand, bytes and warps for short rows, for long ones, and for one-byte weights.
SHORT_ROW = 2048
SHORT_TILE, LONG_TILE, BYTE_TILE = (16384, 4), (65536, 8), (16384, 4)
MOST_COLUMNS = 16384
MOST_ROWS = 8
# cuBLAS takes e4m3 matrices of such sizes only.
SCALED_STEP = 16


class Surroundings(TypedDict, total=False):
    """What may stand around a product; see :func:`linear`."""

    norm: Norm | None
    bias: torch.Tensor | None
    residual: torch.Tensor | None
    activation: str | None
    leads: bool
    joins: bool


class Scratch:
    """Device buffers by name that products share, one after the other on one stream.

    A buffer grows until :meth:`seal`; a captured graph needs sealed ones, which stay in place.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._buffers: dict[str, torch.Tensor] = {}
        self._is_sealed = False

    @property
    def num_bytes(self) -> int:
        return sum(buffer.numel() for buffer in self._buffers.values())

    def seal(self) -> None:
        """From here on a request for more than there is is our mistake."""
        self._is_sealed = True

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """The first bytes of a buffer as such a tensor; what it holds is undefined."""
        size = dtype.itemsize
        for extent in shape:
            size *= extent
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size:
            assert not self._is_sealed, f"scratch {name} has no {size} bytes"
            buffer = torch.empty(size, dtype=torch.uint8, device=self.device)
            self._buffers[name] = buffer
        return buffer[:size].view(dtype).view(shape)


def is_packed(matrix: Matrix) -> bool:
    """Whether the kernels of packed products take it."""
    return not matrix.is_plain and matrix.format != "fp8"


def plan_of(matrix: Matrix, tokens: int, around: Around, dtype: torch.dtype) -> Plan:
    """How a product of few tokens is cut; from the matrix and the number of tokens alone."""
    columns = matrix.shape[1]
    size = matrix.codes.element_size()
    halves = 1 if around.activation is None else 2
    # Tensor cores take inputs of the compute dtype; times a gain they may leave f16's range.
    if tokens <= LANE_TOKENS or (dtype == torch.float16 and around.norm is not None):
        tile, warps = SHORT_TILE if columns <= SHORT_ROW else LONG_TILE if size > 1 else BYTE_TILE
        width = min(triton.next_power_of_2(columns), MOST_COLUMNS * 2 // size)
        if size == 1 and columns % width:
            width = SHORT_ROW
        rows = min(max(tile // (width * size * halves), 1), MOST_ROWS)
        return Plan(rows=rows, columns=width, warps=warps)
    return _tile_plan(matrix, halves, dtype)


def _tile_plan(matrix: Matrix, halves: int, dtype: torch.dtype) -> Plan:
    """Tiles for tensor cores: enough programs for all processors, and 48 kB on their way each."""
    rows, columns = matrix.shape
    size = matrix.codes.element_size()
    height = 16 if rows // halves < 8192 else 32 // halves
    width = min(max(triton.next_power_of_2(columns), 16), 512 // size)
    # Shared memory also holds numbers of one byte as f32, which leaves no room for a fourth stage.
    stages = 3 if height > 16 and size == 1 and dtype == torch.float32 else 4
    return Plan(rows=height, columns=width, warps=4, stages=stages, tokens=16)


def linear(
    x: torch.Tensor,
    matrix: Matrix,
    out: torch.Tensor,
    *,
    scratch: Scratch,
    deterministic: bool = False,
    **surroundings: Unpack[Surroundings],
) -> None:
    """Out [T, N] = x [T, K] times the matrix, with what stands around it.

    In order: ``norm`` of x; the product; ``bias`` [N]; with ``activation``, act(first half) *
    second half; ``residual``, which may be ``out`` itself. ``deterministic``: a token's result does
    not depend on how many others there are. ``leads``, ``joins``: packed products of one input, one
    after the other, may run beside each other; the first leads, the others join it.
    """
    around = Around(**surroundings)
    tokens = len(x)
    if not tokens:
        return
    if deterministic:
        _alike(x, matrix, out, around, scratch)
    elif tokens > (FEW_TOKENS if is_packed(matrix) else DENSE_TOKENS):
        _many(x, matrix, out, around, scratch)
    elif is_packed(matrix):
        packed_few(x, matrix, out, around)
    else:
        few(x, matrix, out, around, plan_of(matrix, tokens, around, x.dtype))


def _alike(
    x: torch.Tensor, matrix: Matrix, out: torch.Tensor, around: Around, scratch: Scratch
) -> None:
    """One kernel in one cut for any number of tokens."""
    if not is_packed(matrix):
        if around.norm is not None and x.dtype == torch.float16:
            x = _normalised(x, around.norm, scratch)
            around = Around(None, around.bias, around.residual, around.activation)
        halves = 1 if around.activation is None else 2
        few(x, matrix, out, around, _tile_plan(matrix, halves, x.dtype))
        return
    for start in range(0, len(x), FEW_TOKENS):
        part = slice(start, start + FEW_TOKENS)
        residual = None if around.residual is None else around.residual[part]
        some = Around(around.norm, around.bias, residual, around.activation)
        packed_few(x[part], matrix, out[part], some, alike=True)


def _normalised(x: torch.Tensor, norm: Norm, scratch: Scratch) -> torch.Tensor:
    normal = scratch.take("normal", tuple(x.shape), x.dtype)
    normalise(x, norm.gain, None, norm.eps, normal)
    return normal


def _many(
    x: torch.Tensor, matrix: Matrix, out: torch.Tensor, around: Around, scratch: Scratch
) -> None:
    """Norm, product and activation one after the other."""
    if _takes_scaled(x, matrix):
        _scaled(x, matrix, out, around, scratch)
        return
    if around.norm is not None:
        x = _normalised(x, around.norm, scratch)
    if is_packed(matrix) and len(x) <= UNPACKED_TOKENS:
        product = out
        if around.activation is not None or around.residual is not None:
            product = scratch.take("product", (len(x), matrix.shape[0]), x.dtype)
        packed_many(x, matrix, product, bias=around.bias)
        if product is not out:
            _place(product, out, around)
        return
    weights = _dense(matrix, x.dtype, scratch)
    if around.activation is None:
        _multiply(x, weights, out, around.bias, around.residual)
        return
    product = scratch.take("product", (len(x), matrix.shape[0]), x.dtype)
    _multiply(x, weights, product, around.bias, None)
    gated(product, around.activation, out, around.residual)


def _place(product: torch.Tensor, out: torch.Tensor, around: Around) -> None:
    """What comes behind the bias."""
    if around.activation is not None:
        gated(product, around.activation, out, around.residual)
    elif around.residual is not None:
        torch.add(product, around.residual, out=out)
    else:
        out.copy_(product)


def _dense(matrix: Matrix, dtype: torch.dtype, scratch: Scratch) -> torch.Tensor:
    """The matrix in the compute dtype."""
    if matrix.is_plain and matrix.codes.dtype == dtype:
        return matrix.codes
    weights = scratch.take("weights", matrix.shape, dtype)
    if matrix.is_plain:
        weights.copy_(matrix.codes)
    elif matrix.format == "fp8":
        assert matrix.scales is not None, "an fp8 matrix has a scale a row"
        weights.copy_(matrix.codes)
        weights.mul_(matrix.scales[:, None])
    else:
        unpack(matrix, weights)
    return weights


def _multiply(
    x: torch.Tensor,
    weights: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
) -> None:
    """Out = x · weightsᵀ (+ bias) (+ residual) by cuBLAS; out may have more precision than x."""
    turned = weights.t()
    if out.dtype == x.dtype:
        if residual is out:
            out.addmm_(x, turned)  # given as another tensor, it would be copied first
        elif residual is not None:
            torch.addmm(residual, x, turned, out=out)
        elif bias is not None:
            torch.addmm(bias.to(x.dtype), x, turned, out=out)
            bias = None
        else:
            torch.mm(x, turned, out=out)
    else:
        assert out.dtype == torch.float32, "products are of the compute dtype or f32"
        if x.is_cuda:
            torch.mm(x, turned, out_dtype=torch.float32, out=out)
        else:  # the CPU's product, for tests, has no result of another type
            torch.mm(x.float(), turned.float(), out=out)
        if residual is not None:
            out.add_(residual)
    if bias is not None:
        out.add_(bias)


def _takes_scaled(x: torch.Tensor, matrix: Matrix) -> bool:
    """Whether the product can be made of e4m3 inputs; cuBLAS gives bf16 results of them alone."""
    return (
        matrix.format == "fp8"
        and x.is_cuda
        and x.dtype == torch.bfloat16
        and all(extent % SCALED_STEP == 0 for extent in matrix.shape)
    )


def _scaled(
    x: torch.Tensor, matrix: Matrix, out: torch.Tensor, around: Around, scratch: Scratch
) -> None:
    """The product with e4m3 inputs, which the norm's kernel makes on its way."""
    assert matrix.scales is not None, "an fp8 matrix has a scale a row"
    codes = scratch.take("codes", tuple(x.shape), torch.float8_e4m3fn)
    scales = scratch.take("scales", (len(x),), torch.float32)
    quantise_tokens(x, codes, scales, around.norm)
    product = out
    is_last = around.activation is None and around.residual is None
    if not is_last or out.dtype != torch.bfloat16 or not out.is_contiguous():
        product = scratch.take("product", (len(x), matrix.shape[0]), torch.bfloat16)
    torch._scaled_mm(
        codes,
        matrix.codes.t(),
        scale_a=scales[:, None],
        scale_b=matrix.scales[None, :],
        bias=None if around.bias is None else around.bias.to(torch.bfloat16),
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
        out=product,
    )
    if product is not out:
        _place(product, out, around)
