"""unary: one scalar function of each element.

Floats take every function of ``functions.UNARY``; whole numbers only those that give whole numbers;
truth values only ``not``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qeff.ops.base import (
    FLOATS,
    INTS,
    Array,
    Attribute,
    Attrs,
    Input,
    Inputs,
    OpKind,
    RuleError,
    Step,
    as_float,
    given,
    known,
)
from qeff.ops.functions import UNARY

WHOLE = ("abs", "neg", "sign")


def _rule(inputs: Inputs, attrs: Attrs) -> list[tuple[tuple[int, ...], str]]:
    x, function = known(inputs, 0), attrs["function"]
    if (x.dtype == "bool") != (function == "not"):
        raise RuleError(f"applies {function!r} to {x.dtype}")
    if x.dtype in INTS and function not in WHOLE:
        raise RuleError(f"applies {function!r} to {x.dtype}")
    return [(x.shape, x.dtype)]


def _reference(inputs: Sequence[Array | None], attrs: Attrs, step: Step) -> list[Array]:
    x, function = given(inputs, 0), attrs["function"]
    if function == "not":
        return [np.logical_not(x)]
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        if x.dtype.kind == "i":
            return [np.asarray(UNARY[function](x), x.dtype)]
        return [np.asarray(UNARY[function](as_float(x)), x.dtype)]


OP = OpKind(
    inputs=(Input("x", dtypes=(*FLOATS, *INTS, "bool")),),
    attributes=(Attribute("function", str, is_required=True, choices=(*sorted(UNARY), "not")),),
    rule=_rule,
    reference=_reference,
    summary="function(x), element by element",
)
