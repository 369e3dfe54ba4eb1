"""Panels: GGUF rows keep every number, floats come back, and the bytes lie as the document says."""

from __future__ import annotations

import math

import gguf
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qeff.compile.panels import pack_panels, panel_shape, stream_panels, unpack_panels
from qeff.compile.panels.encoding import ENCODED
from qeff.compile.panels.gguf_rows import EXACT
from qeff.compile.panels.layout import FORMATS
from qeff.compile.panels.matrix import Matrix, NoNumber, float_matrix
from qeff.compile.panels.packing import Sums
from qeff.container.program import PACKED_DTYPES
from qeff.core.formats import FORMATS as STORED

# Where the float16 scales of a GGUF block begin.
HALVES = {
    "q8_0": (0,), "q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q4_k": (0, 2), "q6_k": (208,),
    "mxfp4": (),
}  # fmt: skip
# The largest difference of a value, as a part of the largest one of its block of 32. With four bits
# the search may cut the largest value of a block, which all others gain from.
CLOSE = {
    "f32": 0, "f16": 2**-11, "bf16": 2**-8, "q8_0": 0.51 / 127, "q4_0": 0.3,
    "mxfp4": 0.26, "mxfp6": 0.07, "mxfp8": 0.13,
}  # fmt: skip
BYTES = {
    "f32": 64, "f16": 32, "bf16": 32, "q8_0": 544 / 32, "q4_0": 288 / 32, "q4_1": 320 / 32,
    "mxfp4": 272 / 32, "mxfp6": 400 / 32, "mxfp8": 528 / 32, "q4_k": 2368 / 256,
    "q6_k": 3360 / 256,
}  # fmt: skip


def random_rows(form: str, rows: int, blocks: int, seed: int = 0) -> np.ndarray:
    """Packed rows with any codes, and scales that are numbers."""
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (rows, blocks, STORED[form].block_bytes), np.uint8)
    for start in HALVES[form]:
        scales = rng.standard_normal((rows, blocks)).astype(np.float16)
        data[..., start : start + 2] = scales[..., None].view(np.uint8)
    if form == "mxfp4":
        data[..., 0] = rng.integers(1, 250, (rows, blocks))
    return data.reshape(rows, -1)


def random_floats(rows: int, cols: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    size = 10.0 ** rng.integers(-3, 3, (rows, 1))
    return (rng.standard_normal((rows, cols)) * size).astype(np.float32)


@settings(deadline=None, max_examples=60)
@given(
    form=st.sampled_from(sorted(EXACT)),
    rows=st.integers(1, 40),
    blocks=st.integers(1, 3),
    seed=st.integers(0, 999),
)
def test_gguf_rows_keep_every_number(form: str, rows: int, blocks: int, seed: int) -> None:
    packed = random_rows(form, rows, blocks, seed)
    expected = gguf.dequantize(packed, gguf.GGMLQuantizationType[form.upper()])
    panels = pack_panels(packed, EXACT[form], form)
    found = unpack_panels(panels, EXACT[form], expected.shape)
    np.testing.assert_array_equal(found, expected)


@settings(deadline=None, max_examples=150)
@given(
    form=st.sampled_from(ENCODED),
    rows=st.integers(1, 50),
    cols=st.integers(1, 100),
    seed=st.integers(0, 999),
)
def test_floats_come_back(form: str, rows: int, cols: int, seed: int) -> None:
    matrix = random_floats(rows, cols, seed)
    sums = Sums()
    panels = np.concatenate(list(stream_panels(float_matrix(matrix), form, sums)))
    assert panels.shape == panel_shape(form, matrix.shape) and panels.dtype == np.uint8
    found = unpack_panels(panels, form, matrix.shape)
    padded = np.zeros((rows, math.ceil(cols / 32) * 32), np.float32)
    padded[:, :cols] = np.abs(matrix)
    largest = np.repeat(padded.reshape(rows, -1, 32).max(2), 32, axis=1)[:, :cols]
    # Scales below the normal halves are multiples of 2^-24, and 127 of them make a value.
    assert (np.abs(found - matrix) <= CLOSE[form] * largest + 127 * 2.0**-25).all()
    error = np.square(found - matrix, dtype=np.float64).sum()
    energy = np.square(matrix, dtype=np.float64).sum()
    assert sums.error == pytest.approx(error, rel=1e-3, abs=1e-9 * energy + 1e-12)
    assert sums.energy == pytest.approx(energy, rel=1e-5)


@pytest.mark.parametrize("form", list(FORMATS))
@pytest.mark.parametrize("shape", [(1, 256), (16, 512), (33, 256), (3, 17, 256)])
def test_sizes_are_those_of_the_document(form: str, shape: tuple[int, ...]) -> None:
    *stack, rows, cols = shape
    panels = math.prod(stack) * math.ceil(rows / 16)
    assert panel_shape(form, shape) == (panels, BYTES[form] * cols)


def test_every_packed_dtype_of_programs_has_panels() -> None:
    assert set(FORMATS) == {"f32", "f16", "bf16", *PACKED_DTYPES}
    # A block of 16 rows takes what 16 blocks of a row take: nothing is added by the layout.
    for form in ("q8_0", "q4_0", "q4_1", "mxfp4", "mxfp6", "mxfp8", "q6_k"):
        assert FORMATS[form].group_bytes == 16 * STORED[form].block_bytes
    assert FORMATS["q4_k"].group_bytes == 16 * (STORED["q4_k"].block_bytes + 4)  # whole scales


def at(form: str, row: int, k: int) -> tuple[int, int]:
    """Byte and shift of a code within the codes of a block, told without numpy."""
    v = k // 4 * 64 + row * 4 + k % 4
    if form == "q4_0":
        return v % 256, 4 * (v // 256)
    return v, 0


@pytest.mark.parametrize("form", ["q8_0", "q4_0"])
@pytest.mark.parametrize(("row", "k"), [(0, 0), (15, 31), (3, 18), (7, 5), (12, 16)])
def test_a_code_lies_where_the_document_puts_it(form: str, row: int, k: int) -> None:
    bits = 8 if form == "q8_0" else 4
    zero = 0 if form == "q8_0" else 8
    matrix = np.zeros((16, 64), np.float32)
    matrix[row, 32 + k] = -1.0
    panel = pack_panels(matrix, form)[0]
    block = panel[len(panel) // 2 :]  # the second block of two
    scales = block[:32].view(np.float16)
    assert scales[row] != 0 and not np.delete(scales, row).any()
    byte, shift = at(form, row, k)
    code = int(block[32 + byte]) >> shift & ((1 << bits) - 1)
    value = (code - (256 if form == "q8_0" and code > 127 else zero)) * float(scales[row])
    assert value == pytest.approx(-1, rel=1e-3)


def test_rows_that_are_missing_are_zeros() -> None:
    for form in ENCODED:
        panels = pack_panels(np.ones((17, 32), np.float32), form)
        whole = unpack_panels(panels, form, (32, 32))
        assert whole[:17].all() and not whole[17:].any()
    blocks = pack_panels(np.ones((1, 32), np.float32), "q4_0").reshape(288)
    assert not blocks[2:32].any() and not (blocks[32:].reshape(4, 16, 4)[:, 1:]).any()


def test_a_stack_is_its_matrices_one_after_the_other() -> None:
    stack = random_floats(3 * 20, 40, 1).reshape(3, 20, 40)
    together = np.concatenate(list(stream_panels(float_matrix(stack), "mxfp6")))
    apart = [pack_panels(matrix, "mxfp6") for matrix in stack]
    np.testing.assert_array_equal(together, np.concatenate(apart))
    turned = np.ascontiguousarray(stack.swapaxes(1, 2))
    found = np.concatenate(list(stream_panels(float_matrix(turned, is_transposed=True), "mxfp6")))
    np.testing.assert_array_equal(found, together)


@pytest.mark.parametrize("form", ["f16", "q8_0", "q4_0", "mxfp8"])
def test_pieces_and_threads_change_nothing(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = random_floats(200, 70, 2)
    monkeypatch.setattr("qeff.compile.panels.packing._CHUNK_VALUES", 1 << 30)
    whole = pack_panels(matrix, form)
    monkeypatch.setattr("qeff.compile.panels.packing._CHUNK_VALUES", 2000)
    sums = [Sums(), Sums()]
    for threads, sum_ in zip((1, 3), sums, strict=True):
        pieces = list(stream_panels(float_matrix(matrix), form, sum_, threads))
        assert len(pieces) > 3
        np.testing.assert_array_equal(np.concatenate(pieces), whole)
    assert sums[0] == sums[1]


def test_only_a_few_rows_are_read_ahead() -> None:
    asked: list[int] = []

    def read(index: int, start: int, stop: int) -> np.ndarray:
        asked.append(start)
        return np.ones((stop - start, 1024), np.float32)

    pieces = stream_panels(Matrix((1, 1 << 16, 1024), read), "q8_0", threads=2)
    next(pieces)
    assert len(asked) <= 8
    pieces.close()


def test_an_error_of_a_reader_reaches_the_caller() -> None:
    def read(index: int, start: int, stop: int) -> np.ndarray:
        if start:
            raise OSError("gone")
        return np.ones((stop - start, 1024), np.float32)

    with pytest.raises(OSError, match="gone"):
        list(stream_panels(Matrix((1, 1 << 12, 1024), read), "f16", threads=2))


def test_values_too_large_for_a_half_become_the_largest_one() -> None:
    found = unpack_panels(pack_panels(np.full((1, 4), 1e9, np.float32), "f16"), "f16", (1, 4))
    np.testing.assert_array_equal(found, 65504)


WHOLE_BASES = (-64, -32, 0, 32, -30, 2, -15, -13)
SPLIT_BASES = (0, 1, 2, 3, 16, 18, 32, 48, -64, -48, -32, -30, -16, -15, -14, -13)


def e2m3_element(body: np.ndarray, row: int, k: int) -> float:
    """An element of mxfp6 by the text of docs/panels.md, told without numpy."""
    group, place = k // 4, row * 4 + k % 4
    first, second, third = (int(body[group % 2 * 192 + 64 * i + place]) for i in range(3))
    own = first if group < 4 else second
    if group % 4 < 2:
        return (WHOLE_BASES[own & 3 | (own & 16) >> 2] + 4 * (own >> 5)) / 8
    return (SPLIT_BASES[third & 15 if group < 4 else third >> 4] + (own & 12)) / 8


@pytest.mark.parametrize("form", ["mxfp4", "mxfp6", "mxfp8"])
def test_mx_panels_hold_the_codes_of_the_specification(form: str) -> None:
    """The bytes themselves, against ml_dtypes: exponents first, then codes in their order."""
    dtype, top = {
        "mxfp4": (ml_dtypes.float4_e2m1fn, 2),
        "mxfp6": (ml_dtypes.float6_e2m3fn, 2),
        "mxfp8": (ml_dtypes.float8_e4m3fn, 8),
    }[form]
    matrix = random_floats(16, 32, 5)
    panel = pack_panels(matrix, form)[0]
    exponents = np.floor(np.log2(np.abs(matrix).max(1))).astype(int) - top
    np.testing.assert_array_equal(panel[:16], exponents + 127)
    largest = float(ml_dtypes.finfo(dtype).max)
    scaled = np.clip(np.ldexp(matrix, -exponents[:, None]), -largest, largest)
    codes = scaled.astype(dtype).view(np.uint8)
    body = panel[16:].astype(int)
    for row, k in [(0, 0), (5, 9), (15, 31), (8, 16), (2, 30), (3, 4), (9, 20), (11, 13)]:
        v = k * 16 + row if form == "mxfp8" else k // 4 * 64 + row * 4 + k % 4
        if form == "mxfp6":  # numbered by the tables of docs/panels.md instead of by its bits
            assert e2m3_element(body, row, k) == scaled[row, k].astype(dtype)
        elif form == "mxfp8":
            assert body[v] == codes[row, k]
        else:
            assert body[v % 256] >> 4 * (v // 256) & 15 == codes[row, k]


def test_every_element_of_mxfp6_comes_back_in_every_column() -> None:
    elements = np.arange(64, dtype=np.uint8).view(ml_dtypes.float6_e2m3fn).astype(np.float32)
    matrix = np.empty((64, 32, 32), np.float32)  # of each element: itself in one column, 7.5 beside
    matrix[:] = 7.5
    for column in range(32):
        matrix[:, column, column] = elements
    matrix = matrix.reshape(-1, 32)
    found = unpack_panels(pack_panels(matrix, "mxfp6"), "mxfp6", matrix.shape)
    np.testing.assert_array_equal(found, matrix)


@pytest.mark.parametrize("form", sorted(EXACT))
def test_scales_that_are_no_numbers_are_refused(form: str) -> None:
    packed = random_rows(form, 3, 2).reshape(3, 2, -1)
    bad = np.frombuffer(np.float16(np.inf).tobytes(), np.uint8)
    for start in HALVES[form] or (0,):
        damaged = packed.copy()
        damaged[1, 1, start : start + 2] = bad if HALVES[form] else (255, 0)
        with pytest.raises(NoNumber):
            pack_panels(damaged.reshape(3, -1), EXACT[form], form)
