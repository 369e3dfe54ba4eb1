"""Products of the CUDA engine with plain and e4m3 weights, beside float64.

Without a GPU the kernels run in Triton's interpreter.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
pytest.importorskip("triton", reason="triton is not installed")

from qeff.backends.cuda.session.kernels.dense_few import Around, Plan, few  # noqa: E402
from qeff.backends.cuda.session.kernels.fp8_tokens import quantise_tokens  # noqa: E402
from qeff.backends.cuda.session.kernels.gated import gated  # noqa: E402
from qeff.backends.cuda.session.kernels.norm import normalise  # noqa: E402
from qeff.backends.cuda.session.linear import Scratch, linear  # noqa: E402
from qeff.backends.cuda.session.matrix import PLAIN, Matrix, Norm  # noqa: E402
from qeff.ops.functions import ACTIVATIONS  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Relative, of all results together: a rounding or two of the type. The interpreter cuts where a
# GPU rounds. A single result may be off by three times as much of the largest.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
EPS = 1e-5
LANES = Plan(rows=4, columns=64, warps=1)
TILES = Plan(rows=16, columns=64, warps=1, stages=2)


def draw(*shape: int, dtype=torch.float32, seed: int = 0) -> torch.Tensor:
    values = np.random.default_rng([seed, *shape]).standard_normal(shape)
    return torch.from_numpy(values).to(DEVICE, dtype)


def matrix_of(kind: str, rows: int, columns: int) -> Matrix:
    values = draw(rows, columns, seed=1)
    if kind in PLAIN:
        return Matrix(kind, (rows, columns), values.to(PLAIN[kind]).contiguous())
    scales = values.abs().amax(1) / 448
    codes = (values / scales[:, None]).to(torch.float8_e4m3fn)
    return Matrix("fp8", (rows, columns), codes, scales)


def wide(x: torch.Tensor) -> np.ndarray:
    return x.cpu().to(torch.float64).numpy()


def weights_of(matrix: Matrix) -> np.ndarray:
    codes = wide(matrix.codes)
    return codes if matrix.scales is None else codes * wide(matrix.scales)[:, None]


def expected(x: torch.Tensor, matrix: Matrix, around: Around) -> np.ndarray:
    y = wide(x)
    if around.norm is not None:
        y = y / np.sqrt(np.mean(y * y, 1, keepdims=True) + around.norm.eps)
        y = y * wide(around.norm.gain)
    y = y @ weights_of(matrix).T
    if around.bias is not None:
        y = y + wide(around.bias)
    if around.activation is not None:
        half = y.shape[1] // 2
        y = ACTIVATIONS[around.activation](y[:, :half]) * y[:, half:]
    return y if around.residual is None else y + wide(around.residual)


def assert_close(found: torch.Tensor, right: np.ndarray, dtype: torch.dtype) -> None:
    difference = wide(found) - right
    assert np.linalg.norm(difference) <= TOLERANCE[dtype] * np.linalg.norm(right)
    assert np.abs(difference).max() <= 3 * TOLERANCE[dtype] * np.abs(right).max()


def surroundings(which: str, tokens: int, rows: int, columns: int, dtype) -> Around:
    gain = 1 + draw(columns, seed=2) / 4
    half = rows // 2 if which == "gate" else rows
    return {
        "nothing": Around(),
        "norm": Around(norm=Norm(gain, EPS)),
        "all": Around(
            Norm(gain.to(dtype), EPS),
            draw(rows, seed=3).to(dtype),
            draw(tokens, half, seed=4).to(dtype),
        ),
        "gate": Around(
            Norm(gain, EPS), draw(rows, seed=3), draw(tokens, half, seed=4).to(dtype), "silu"
        ),
    }[which]


def output_of(x: torch.Tensor, matrix: Matrix, around: Around) -> torch.Tensor:
    rows = matrix.shape[0] // (1 if around.activation is None else 2)
    return torch.full((len(x), rows), float("nan"), dtype=x.dtype, device=x.device)


@pytest.mark.parametrize("plan", [LANES, TILES], ids=["lanes", "tiles"])
@pytest.mark.parametrize("which", ["nothing", "norm", "all", "gate"])
@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize(
    ("kind", "dtype", "rows", "columns"),
    [
        ("f32", torch.float32, 10, 96),
        ("bf16", torch.bfloat16, 22, 128),
        ("f16", torch.float16, 18, 45),
        ("fp8", torch.bfloat16, 34, 64),
    ],
)
def test_few_tokens(kind, dtype, rows, columns, tokens, which, plan) -> None:
    x = draw(tokens, columns).to(dtype)
    matrix = matrix_of(kind, rows, columns)
    around = surroundings(which, tokens, rows, columns, dtype)
    out = output_of(x, matrix, around)
    few(x, matrix, out, around, plan)
    assert_close(out, expected(x, matrix, around), dtype)


@pytest.mark.parametrize("tokens", [1, 16, 20])
@pytest.mark.parametrize("kind", ["bf16", "f32", "fp8"])
@pytest.mark.parametrize("which", ["nothing", "all", "gate"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_linear(tokens, kind, which, deterministic) -> None:
    dtype, rows, columns = torch.float32 if kind == "f32" else torch.bfloat16, 36, 64
    x = draw(tokens, columns).to(dtype)
    matrix = matrix_of(kind, rows, columns)
    around = surroundings(which, tokens, rows, columns, dtype)
    out = output_of(x, matrix, around)
    linear(
        x,
        matrix,
        out,
        norm=around.norm,
        bias=around.bias,
        residual=around.residual,
        activation=around.activation,
        scratch=Scratch(DEVICE),
        deterministic=deterministic,
    )
    assert_close(out, expected(x, matrix, around), dtype)


@pytest.mark.parametrize("tokens", [2, 18])
def test_logits_are_f32_and_the_residual_may_be_the_result(tokens) -> None:
    matrix = matrix_of("bf16", 40, 64)
    x = draw(tokens, 64).to(torch.bfloat16)
    logits = torch.empty((tokens, 40), device=DEVICE)
    linear(x, matrix, logits, scratch=Scratch(DEVICE))
    assert_close(logits, expected(x, matrix, Around()), torch.float32)
    stream = draw(tokens, 40, seed=6).to(torch.bfloat16)
    right = expected(x, matrix, Around(residual=stream.clone()))
    linear(x, matrix, stream, residual=stream, scratch=Scratch(DEVICE))
    assert_close(stream, right, torch.bfloat16)


@pytest.mark.parametrize("kind", ["bf16", "fp8"])
def test_a_deterministic_result_does_not_depend_on_company(kind) -> None:
    matrix = matrix_of(kind, 33, 96)
    x = draw(21, 96).to(torch.bfloat16)
    norm = Norm(1 + draw(96) / 8, EPS)
    outs = [torch.empty((count, 33), device=DEVICE) for count in (21, 1, 5)]
    for out in outs:
        scratch = Scratch(DEVICE)
        linear(x[: len(out)], matrix, out, norm=norm, scratch=scratch, deterministic=True)
    assert torch.equal(outs[0][:1], outs[1]) and torch.equal(outs[0][:5], outs[2])


def test_views_with_a_stride() -> None:
    matrix = matrix_of("f32", 12, 32)
    whole, place = draw(5, 96), torch.zeros((5, 30), device=DEVICE)
    linear(whole[:, 32:64], matrix, place[:, 4:16], scratch=Scratch(DEVICE))
    right = expected(whole[:, 32:64], matrix, Around())
    assert_close(place[:, 4:16], right, torch.float32)
    assert not place[:, :4].any() and not place[:, 16:].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_layer", [False, True])
def test_norms(dtype, is_layer) -> None:
    x, out = draw(3, 70).to(dtype), torch.empty((3, 70), dtype=dtype, device=DEVICE)
    gain, bias = 1 + draw(70) / 4, draw(70, seed=2)
    normalise(x, gain, bias, EPS, out, is_layer=is_layer)
    y = wide(x)
    if is_layer:
        y = y - y.mean(1, keepdims=True)
    y = y / np.sqrt((y * y).mean(1, keepdims=True) + EPS) * wide(gain) + wide(bias)
    assert_close(out, y, dtype)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_gates(name) -> None:
    product = draw(3, 2 * 37) * 4
    product[0, :3] = torch.tensor([-200.0, 0.0, 200.0])
    residual = draw(3, 37, seed=1)
    out = torch.empty((3, 37), device=DEVICE)
    gated(product, name, out, residual)
    gate = ACTIVATIONS[name](wide(product[:, :37]).astype(np.float32)).astype(np.float64)
    assert_close(out, gate * wide(product[:, 37:]) + wide(residual), torch.float32)


@pytest.mark.parametrize("has_norm", [False, True])
def test_tokens_as_e4m3(has_norm) -> None:
    x = draw(4, 70).to(torch.bfloat16)
    x[2] = 0
    gain = 1 + draw(70) / 4
    codes = torch.empty((4, 70), dtype=torch.float8_e4m3fn, device=DEVICE)
    scales = torch.empty(4, device=DEVICE)
    quantise_tokens(x, codes, scales, Norm(gain, EPS) if has_norm else None)
    y = wide(x)
    if has_norm:
        y = y / np.sqrt((y * y).mean(1, keepdims=True) + EPS) * wide(gain)
    found = wide(codes) * wide(scales)[:, None]
    assert np.array_equal(np.abs(wide(codes)).max(1), [448, 448, 0, 448])
    assert np.all(np.abs(found - y) <= np.abs(y) / 15.9 + wide(scales)[:, None] * 2**-10)


def test_scratch_is_used_again() -> None:
    scratch = Scratch(DEVICE)
    first = scratch.take("product", (4, 8), torch.bfloat16)
    again = scratch.take("product", (2, 8), torch.float32)
    assert first.data_ptr() == again.data_ptr() and scratch.num_bytes == 64
    scratch.seal()
    with pytest.raises(AssertionError, match="product"):
        scratch.take("product", (5, 8), torch.bfloat16)
