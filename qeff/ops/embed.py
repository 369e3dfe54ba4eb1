"""embed: rows of a table, picked by a whole number for each token.

The index is a token id or a position; ``offset`` is added to it (tables that begin with unused
rows).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qeff.core.errors import RequestError
from qeff.ops.base import (
    FLOATS,
    INTS,
    MATRICES,
    NUMPY_DTYPES,
    Array,
    Attribute,
    Attrs,
    Input,
    Inputs,
    OpKind,
    RuleError,
    Step,
    check_matrix,
    given,
    known,
)


def _rule(inputs: Inputs, attrs: Attrs) -> list[tuple[tuple[int, ...], str]]:
    table, index = known(inputs, 0), known(inputs, 1)
    if not table.shape:
        raise RuleError("has a table without rows")
    check_matrix(table)
    if table.dtype not in NUMPY_DTYPES and len(table.shape) != 2:
        raise RuleError(f"has a table {table.shape} of {table.dtype}")
    if (attrs["dtype"] in FLOATS) != (table.dtype in MATRICES):
        raise RuleError(f"reads a table of {table.dtype} as {attrs['dtype']}")
    return [(index.shape + table.shape[1:], attrs["dtype"])]


def _reference(inputs: Sequence[Array | None], attrs: Attrs, step: Step) -> list[Array]:
    table, index = given(inputs, 0), given(inputs, 1) + attrs["offset"]
    if index.size and (index.min() < 0 or index.max() >= len(table)):
        bad = index.min() if index.min() < 0 else index.max()
        raise RequestError(f"token id or position {bad} is outside the table of {len(table)} rows")
    return [np.asarray(table[index], NUMPY_DTYPES[attrs["dtype"]])]


OP = OpKind(
    inputs=(
        Input("table", ("weight",), (*MATRICES, *INTS, "bool")),
        Input("index", dtypes=INTS),
    ),
    attributes=(
        Attribute("offset", int, 0),
        Attribute("dtype", str, "f32", choices=tuple(NUMPY_DTYPES)),
    ),
    rule=_rule,
    reference=_reference,
    flops=lambda inputs, attrs, num_tokens, context_len: 0,
    summary="row `index + offset` of the table",
)
