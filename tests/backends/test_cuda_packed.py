"""Packed matrices of the cuda target: their layout, and the kernels in Triton's interpreter."""

from __future__ import annotations

import os

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
pytest.importorskip("triton", reason="triton is not installed")

from qeff.backends.cuda import layout  # noqa: E402
from qeff.backends.cuda.session.kernels.dense_few import Around  # noqa: E402
from qeff.backends.cuda.session.kernels.packed_few import Plan, launch, packed_few  # noqa: E402
from qeff.backends.cuda.session.kernels.packed_many import packed_many  # noqa: E402
from qeff.backends.cuda.session.kernels.unpack import unpack  # noqa: E402
from qeff.backends.cuda.session.matrix import Matrix, Norm  # noqa: E402
from qeff.compile.quantize.mx import ELEMENTS, element_values  # noqa: E402
from qeff.compile.quantize.rounding import quantise, restore, scales_of  # noqa: E402
from qeff.ops.functions import ACTIVATIONS  # noqa: E402

FORMATS = tuple(layout.FORMATS)


def quantised(form: str, rows: int, columns: int, seed: int = 0):
    """Codes and scales of random rows, and the values that they stand for."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((rows, columns)) * np.exp(rng.standard_normal((rows, 1)))
    stored, codes = quantise(values.astype(np.float32).reshape(rows, -1, 32), form)
    exact = restore(codes, scales_of(stored, form)[..., None], form).reshape(rows, columns)
    return codes.reshape(rows, columns), stored, exact


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("columns", [32, 160, 512])
def test_layout_gives_back_every_value(form: str, columns: int) -> None:
    codes, scales, exact = quantised(form, 5, columns)
    stored, wide = layout.pack_rows(form, codes, scales)
    assert stored.dtype == np.uint8
    assert stored.shape == layout.codes_shape(form, (5, columns))
    assert wide.shape == layout.scales_shape(form, (5, columns))
    assert wide.dtype == layout.scales_dtype(form)
    assert np.array_equal(layout.unpack_rows(form, stored, wide, columns), exact)
    some = layout.pack_rows(form, codes[2:4], scales[2:4])
    assert np.array_equal(some[0], stored[2:4])
    assert np.array_equal(some[1], wide[2:4])


@pytest.mark.parametrize("form", FORMATS)
def test_layout_keeps_every_code(form: str) -> None:
    bits = layout.FORMATS[form].bits
    codes = np.arange(256, dtype=np.uint8).reshape(1, 256) & ((1 << bits) - 1)
    scales = np.ones((1, 8), layout.scales_dtype(form))
    stored, wide = layout.pack_rows(form, codes, scales)
    assert np.array_equal(layout.canonical_codes(form, stored), codes)
    if form in ELEMENTS:
        values = element_values(ELEMENTS[form])
        number = ~np.isnan(values)
        got = layout.unpack_rows(form, stored, np.full_like(wide, 127), 256)[0, : len(values)]
        assert np.array_equal(got[number], values[number])


DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def on_device(form: str, rows: int, columns: int) -> tuple[Matrix, np.ndarray]:
    codes, scales, exact = quantised(form, rows, columns)
    stored, wide = layout.pack_rows(form, codes, scales)
    arrays = (torch.from_numpy(item).to(DEVICE) for item in (stored, wide))
    return Matrix(form, (rows, columns), *arrays), exact


def draws(seed: int, *shape: int, dtype: str = "bf16", size: float = 1.0):
    values = np.random.default_rng(seed).standard_normal(shape) * size
    return torch.from_numpy(values).to(DTYPES[dtype]).to(DEVICE)


def relative(got, expected: np.ndarray) -> float:
    return np.linalg.norm(wide(got) - expected) / np.linalg.norm(expected)


def wide(tensor) -> np.ndarray:
    return tensor.cpu().to(torch.float64).numpy()


def error_of(run, tokens: int, rows: int, dtype: str, expected: np.ndarray) -> float:
    """How far a kernel's output is from the expected one; what it leaves unwritten counts."""
    out = torch.full((tokens, rows), torch.nan, dtype=DTYPES[dtype], device=DEVICE)
    run(out)
    return relative(out, expected)


LIMIT = {"bf16": 6e-3, "f16": 8e-4, "f32": 2e-6}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("dtype", "tokens", "columns"), [("bf16", 1, 288), ("bf16", 3, 288), ("f32", 1, 160)]
)
def test_few_tokens(form: str, dtype: str, tokens: int, columns: int) -> None:
    matrix, exact = on_device(form, 21, columns)
    x = draws(1, tokens, columns, dtype=dtype, size=3000.0)
    expected = wide(x) @ exact.astype(np.float64).T
    error = error_of(lambda out: packed_few(x, matrix, out, Around()), tokens, 21, dtype, expected)
    assert error < LIMIT[dtype]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("room", [1, 8])
def test_long_rows(form: str, room: int) -> None:
    matrix, exact = on_device(form, 21, 288)
    tokens = min(room, 2)
    x, norm = draws(1, tokens, 288), Norm(torch.ones(288, device=DEVICE), 0.0)
    value = wide(x)
    expected = value / np.sqrt(np.square(value).mean(-1, keepdims=True)) @ exact.T
    plan, around = Plan(rows=16, splits=1, warps=4, stages=2, tokens=room), Around(norm)
    error = error_of(lambda out: launch(plan, x, matrix, out, around), tokens, 21, "bf16", expected)
    assert error < 2 * LIMIT["bf16"]


@pytest.mark.parametrize("form", ["mxfp4", "q8_0"])
def test_tokens_alike_whatever_their_number(form: str) -> None:
    matrix, _ = on_device(form, 21, 288)
    x = draws(1, 9, 288)
    every, one = torch.empty(9, 21, device=DEVICE), torch.empty(1, 21, device=DEVICE)
    packed_few(x, matrix, every, Around(), alike=True)
    packed_few(x[5:6], matrix, one, Around(), alike=True)
    assert torch.equal(every[5:6], one)


@pytest.mark.parametrize(
    ("form", "dtype", "tokens"),
    [("mxfp4", "bf16", 1), ("q8_0", "bf16", 16), ("q8_0", "f16", 1), ("q4_0", "f32", 1)],
)
def test_all_that_stands_around_a_product(form: str, dtype: str, tokens: int) -> None:
    rows, columns = 22, 160
    matrix, exact = on_device(form, rows, columns)
    x, residual = draws(2, tokens, columns, dtype=dtype), draws(3, tokens, rows, dtype=dtype)
    gain, bias = draws(4, columns, dtype="f32"), draws(5, rows, dtype=dtype)
    value = wide(x)
    value = value / np.sqrt(np.square(value).mean(-1, keepdims=True) + 0.5) * wide(gain)
    product = value @ exact.astype(np.float64).T + wide(bias)
    norm = Norm(gain, 0.5)
    out = residual.clone()  # the residual's own memory
    packed_few(x, matrix, out, Around(norm, bias, out))
    assert relative(out, product + wide(residual)) < 2 * LIMIT[dtype]
    for activation in ("silu", "tanh"):
        function = ACTIVATIONS[activation]
        expected = function(product[:, :11].astype(np.float32)) * product[:, 11:]
        around = Around(norm, bias, None, activation)
        error = error_of(
            lambda out, around=around: packed_few(x, matrix, out, around),
            tokens, 11, dtype, expected,
        )  # fmt: skip
        assert error < 2 * LIMIT[dtype]


@pytest.mark.parametrize("form", FORMATS)
def test_many_tokens(form: str) -> None:
    matrix, exact = on_device(form, 70, 288)
    x, bias = draws(6, 19, 288, size=500.0), draws(7, 70)
    expected = wide(x) @ exact.astype(np.float64).T
    assert error_of(lambda out: packed_many(x, matrix, out), 19, 70, "bf16", expected) < 6e-3
    expected += wide(bias)
    error = error_of(lambda out: packed_many(x, matrix, out, bias=bias), 19, 70, "f32", expected)
    assert error < 1e-4


@pytest.mark.parametrize("form", FORMATS)
def test_unpacking_is_exact(form: str) -> None:
    matrix, exact = on_device(form, 7, 288)
    out = torch.full((7, 288), torch.nan, device=DEVICE)
    unpack(matrix, out)
    assert np.array_equal(out.cpu().numpy(), exact)
    narrow = torch.empty((7, 288), dtype=torch.float16, device=DEVICE)
    unpack(matrix, narrow)
    assert np.array_equal(narrow.cpu().numpy(), exact.astype(np.float16))


def test_smallest_scale_counts() -> None:
    codes, scales = np.full((1, 32), 7, np.uint8), np.zeros((1, 1), np.uint8)
    stored, wide_scales = layout.pack_rows("mxfp4", codes, scales)
    arrays = (torch.from_numpy(item).to(DEVICE) for item in (stored, wide_scales))
    out = torch.empty((1, 32), device=DEVICE)
    unpack(Matrix("mxfp4", (1, 32), *arrays), out)
    assert np.array_equal(out.cpu().numpy(), np.full((1, 32), 6 * 2.0**-127, np.float32))
