"""binary: one scalar function of two elements, with broadcasting over the inner axes.

Comparisons give truth values; ``and``, ``or`` and ``xor`` take them. ``div`` of whole numbers
rounds towards zero; ``mod`` has the sign of the divisor, ``fmod`` that of the dividend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
    broadcast,
    given,
    known,
    same_dtype,
)


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind != "i":
        return np.asarray(a / b)
    with np.errstate(divide="ignore"):
        quotient = np.floor_divide(np.abs(a), np.abs(b))
    return np.asarray(quotient * np.sign(a) * np.sign(b))


ARITHMETIC: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "div": _divide,
    "fmod": np.fmod,
    "max": np.maximum,
    "min": np.minimum,
    "mod": np.mod,
    "mul": np.multiply,
    "pow": np.power,
    "sub": np.subtract,
}
COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "lt": np.less,
    "ne": np.not_equal,
}
LOGIC: dict[str, Callable[[Array, Array], Array]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}
FUNCTIONS = {**ARITHMETIC, **COMPARISONS, **LOGIC}


def _rule(inputs: Inputs, attrs: Attrs) -> list[tuple[tuple[int, ...], str]]:
    a, b = known(inputs, 0), known(inputs, 1)
    function, dtype = attrs["function"], same_dtype([a, b])
    if dtype == "bool" and function not in (*LOGIC, "eq", "ne"):
        raise RuleError(f"applies {function!r} to truth values")
    if dtype != "bool" and function in LOGIC:
        raise RuleError(f"applies {function!r} to {dtype}")
    return [(broadcast([a, b]), dtype if function in ARITHMETIC else "bool")]


def _reference(inputs: Sequence[Array | None], attrs: Attrs, step: Step) -> list[Array]:
    a, b = given(inputs, 0), given(inputs, 1)
    function = attrs["function"]
    if a.dtype.kind not in "ib":
        dtype = np.promote_types(a.dtype, b.dtype) if a.dtype != b.dtype else a.dtype
        a, b = as_float(a), as_float(b)
    else:
        dtype = a.dtype
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        y = FUNCTIONS[function](a, b)
    return [y.astype(dtype, copy=False) if function in ARITHMETIC else y]


_EITHER = ("token", "row", "weight")
OP = OpKind(
    inputs=(
        Input("a", _EITHER, (*FLOATS, *INTS, "bool")),
        Input("b", _EITHER, (*FLOATS, *INTS, "bool")),
    ),
    attributes=(Attribute("function", str, is_required=True, choices=tuple(sorted(FUNCTIONS))),),
    rule=_rule,
    reference=_reference,
    summary="function(a, b), element by element",
)
