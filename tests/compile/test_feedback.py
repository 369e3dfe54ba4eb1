"""Calibrated rounding: against a textbook computation, and the error of products that it saves."""

from __future__ import annotations

import numpy as np
import pytest

from qeff.compile.quantize import feedback
from qeff.compile.quantize.feedback import DAMPING, Sensitivity, quantise_rows, sensitivity_of
from qeff.compile.quantize.mx import ELEMENTS, search_exponents, shared_exponents
from qeff.compile.quantize.rounding import BLOCK_FORMATS, codes_of, quantise, restore, scales_of
from qeff.compile.quantize.scale_search import quantise_q4_0

RNG = np.random.default_rng(11)
COARSE = ("q4_0", "mxfp4", "mxfp6", "mxfp8")


def inputs(tokens: int, cols: int, seed: int = 1) -> np.ndarray:
    """Correlated columns of very different sizes, as activations are."""
    rng = np.random.default_rng(seed)
    mixed = rng.standard_normal((tokens, cols // 4)) @ rng.standard_normal((cols // 4, cols))
    mixed = mixed + 0.5 * rng.standard_normal((tokens, cols))
    return (mixed * np.exp(rng.standard_normal(cols))).astype(np.float32)


def weights(rows: int, cols: int) -> np.ndarray:
    return np.random.default_rng(2).standard_normal((rows, cols)).astype(np.float32)


def restored(stored: np.ndarray, codes: np.ndarray, form: str) -> np.ndarray:
    blocks = codes.reshape(*stored.shape, 32)
    return restore(blocks, scales_of(stored, form)[..., None], form).reshape(len(stored), -1)


def product_error(found: np.ndarray, wanted: np.ndarray, x: np.ndarray) -> float:
    return float(np.square((found - wanted).astype(np.float64) @ x.T).sum())


def textbook(rows: np.ndarray, scales: np.ndarray, gram: np.ndarray, form: str) -> np.ndarray:
    """Optimal brain quantisation in column order: the inverse is reduced after every column."""
    rest, inverse = rows.astype(np.float64), np.linalg.inv(gram)
    codes = np.empty(rows.shape, np.uint8)
    for j in range(rows.shape[1]):
        scale = scales[:, j // 32]
        codes[:, j] = codes_of(rest[:, j].astype(np.float32), scale, form)
        error = rest[:, j] - restore(codes[:, j], scale, form)
        rest -= np.outer(error / inverse[j, j], inverse[j])
        inverse -= np.outer(inverse[:, j], inverse[j]) / inverse[j, j]
        inverse[j, j] = 1  # its row and column are used up
    return codes


@pytest.mark.parametrize("form", COARSE)
def test_codes_are_the_textbooks(form: str) -> None:
    rows, x = weights(24, 96), inputs(400, 96)
    stored, codes = quantise_rows(rows, form, sensitivity_of(x))
    gram = x.T.astype(np.float64) @ x
    gram += DAMPING * np.diag(np.diag(gram))
    expected = textbook(rows, scales_of(stored, form), gram, form)
    assert (codes == expected).mean() > 0.99  # a tie may fall either way


@pytest.mark.parametrize("cols", [64, 40])
def test_a_factor_is_the_root_of_the_inverse(cols: int) -> None:
    x = inputs(200, cols)
    x[:, 3] = 0  # an input that was never seen
    (upper,) = sensitivity_of(x).factors
    gram = x.T.astype(np.float64) @ x
    gram += DAMPING * np.diag(np.diag(gram))
    seen = np.flatnonzero(np.diag(gram))
    found = (upper.T.astype(np.float64) @ upper)[np.ix_(seen, seen)] @ gram[np.ix_(seen, seen)]
    np.testing.assert_allclose(found, np.eye(len(seen)), atol=1e-4)
    assert upper.shape == (64, 64) and (np.tril(upper, -1) == 0).all()


@pytest.mark.parametrize("form", COARSE)
def test_products_on_other_inputs_are_nearer(form: str) -> None:
    rows, x = weights(48, 128), inputs(1024, 128)
    other = x[512:]  # the same process, other tokens
    known = sensitivity_of(x[:512])
    plain = restored(*quantise(rows.reshape(48, -1, 32), form), form)
    weighed = restored(*quantise_rows(rows, form, Sensitivity(known.importance)), form)
    fed = restored(*quantise_rows(rows, form, known), form)
    errors = [product_error(found, rows, other) for found in (plain, weighed, fed)]
    assert errors[1] < (0.97 if form in ("q4_0", "mxfp4") else 1) * errors[0]
    assert errors[2] < 0.8 * errors[1]


def test_equal_weights_change_nothing() -> None:
    blocks = weights(16, 64).reshape(16, 2, 32)
    plain, same = quantise_q4_0(blocks), quantise_q4_0(blocks, np.ones(32, np.float32))
    np.testing.assert_array_equal(plain[0], same[0])
    np.testing.assert_array_equal(plain[1], same[1])


def test_uncorrelated_inputs_need_no_feedback() -> None:
    rows, x = weights(8, 64), np.diag(np.arange(1, 65)).astype(np.float32)
    known = sensitivity_of(x)
    fed, weighed = quantise_rows(rows, "q4_0", known), Sensitivity(known.importance)
    np.testing.assert_array_equal(fed[1], quantise_rows(rows, "q4_0", weighed)[1])


def test_wide_matrices_are_treated_in_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, x = weights(8, 160), inputs(300, 160)
    monkeypatch.setattr(feedback, "MAX_SPAN", 96)
    stored, codes = quantise_rows(rows, "q4_0", sensitivity_of(x))
    first = quantise_rows(rows[:, :96], "q4_0", _scaled(x, slice(0, 96)))
    second = quantise_rows(rows[:, 96:], "q4_0", _scaled(x, slice(96, 160)))
    assert [span.stop for span in feedback.spans(160)] == [96, 160]
    np.testing.assert_array_equal(codes, np.concatenate([first[1], second[1]], axis=1))
    np.testing.assert_array_equal(stored, np.concatenate([first[0], second[0]], axis=1))


def _scaled(x: np.ndarray, part: slice) -> Sensitivity:
    """A span's own factor, with the importance that it has in the whole."""
    whole, own = sensitivity_of(x, has_feedback=False), sensitivity_of(x[:, part])
    return Sensitivity(whole.importance[part], own.factors)


def test_inputs_of_zeros_are_no_information() -> None:
    known = sensitivity_of(np.zeros((5, 32), np.float32))
    assert (known.importance == 1).all() and np.isfinite(known.factors[0]).all()


@pytest.mark.parametrize("form", ELEMENTS)
def test_exponents_that_are_searched_for_are_no_worse(form: str) -> None:
    blocks = RNG.standard_t(4, (256, 32)).astype(np.float32)
    importance = np.exp(RNG.standard_normal(32)).astype(np.float32)
    own = shared_exponents(blocks, ELEMENTS[form])
    best = search_exponents(blocks, ELEMENTS[form], importance)
    errors = []
    for exponents in (own, best):
        scales = np.ldexp(np.float32(1), exponents)[:, None]
        found = restore(codes_of(blocks, scales, form), scales, form)
        errors.append((np.square(found - blocks) * importance).sum(-1))
    assert (errors[1] <= errors[0]).all() and (form != "mxfp4" or (errors[1] < errors[0]).any())


@pytest.mark.parametrize("form", BLOCK_FORMATS)
def test_codes_of_values_are_those_of_blocks(form: str) -> None:
    blocks = weights(16, 32)
    stored, codes = quantise(blocks, form)
    scales = np.broadcast_to(scales_of(stored, form)[:, None], blocks.shape)
    np.testing.assert_array_equal(codes_of(blocks, scales, form), codes)
