"""Masks are named by their numbers, and a mask without a name stays without one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from qeff.export.masks import NEAR, MaskName, classify

LOWEST = torch.finfo(torch.float32).min
KEYS = torch.arange(64)
QUERIES = NEAR[:, None, :, None]
PAST = KEYS <= QUERIES


def as_float(mask: Tensor) -> Tensor:
    return torch.where(mask, 0.0, LOWEST)


@pytest.mark.parametrize("form", [lambda mask: mask, as_float], ids=["bool", "float"])
@pytest.mark.parametrize(
    ("mask", "name"),
    [
        (PAST, MaskName("causal")),
        (PAST & (QUERIES - KEYS < 5), MaskName("window", 5)),
        (PAST & (QUERIES - KEYS < 1), MaskName("window", 1)),
        (PAST & (QUERIES // 6 == KEYS // 6), MaskName("chunk", 6)),
        (PAST & (KEYS % 2 == 0), None),
        (KEYS < QUERIES + 2, None),
        (PAST & ((QUERIES - KEYS < 3) | (KEYS < 2)), None),
    ],
    ids=["causal", "window", "one", "chunk", "every other", "future", "first two"],
)
def test_named(mask: Tensor, name: MaskName | None, form) -> None:
    assert classify(form(mask.expand(2, 1, -1, -1)), NEAR) == name


def alibi(slopes: list[float], shift: Tensor | float = 0.0) -> Tensor:
    bias = torch.tensor(slopes)[None, :, None, None] * (KEYS - QUERIES) + shift
    return bias.masked_fill(~PAST, LOWEST)


def test_alibi_up_to_a_constant_for_each_query() -> None:
    for shift in (0.0, torch.randn(2, 4, 40, 1)):
        name = classify(alibi([0.5, 0.25, 0.125, 0.0625], shift), NEAR)
        assert name is not None and name.kind == "alibi"
        assert name.slopes == pytest.approx((0.5, 0.25, 0.125, 0.0625), abs=1e-5)


def test_other_biases_have_no_name() -> None:
    assert classify(alibi([0.5]) + torch.randn(2, 1, 40, 64) * 0.1, NEAR) is None
    assert classify(alibi([0.5]).square().neg(), NEAR) is None
