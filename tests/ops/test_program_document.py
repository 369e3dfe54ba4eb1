"""docs/program.md tells every op kind with all its inputs' and attributes' names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qeff.ops import kinds
from qeff.ops.base import FLOATS
from qeff.ops.binary import FUNCTIONS
from qeff.ops.functions import ACTIVATIONS, UNARY

TEXT = (Path(__file__).parents[2] / "docs" / "program.md").read_text(encoding="utf-8")
ROWS = {match[1]: match[0] for match in re.finditer(r"^\| `(\w+)` \|.*\|$", TEXT, re.MULTILINE)}


@pytest.mark.parametrize("name", sorted(kinds()))
def test_every_kind_has_a_row_that_names_its_attributes(name: str) -> None:
    kind = kinds()[name]
    for attribute in kind.attributes:
        assert f"`{attribute.name}`" in ROWS[name]
    for item in kind.inputs:
        assert re.search(rf"\b{item.name}\b", ROWS[name]), item.name


def test_no_row_tells_of_a_kind_that_is_not_there() -> None:
    assert set(ROWS) - {"token", "row", "weight"} == set(kinds())


def test_functions_are_listed_in_full() -> None:
    for function in UNARY:
        assert re.search(rf"\b{function}\b", ROWS["unary"])
    for function in FUNCTIONS:
        assert re.search(rf"\b{function}\b", ROWS["binary"])
    for activation in ACTIVATIONS:
        assert re.search(rf"`activation` is one of .*\b{activation}\b", TEXT)
    assert all(f"`{dtype}`" in TEXT for dtype in FLOATS)
