"""linear: x times a weight matrix, plus a bias.

The weight lies as [out, in], or as [in, out] when ``transposed``; x may have leading inner axes.
"""

from __future__ import annotations

from collections.abc import Sequence

from qeff.ops.base import (
    MATRICES,
    Array,
    Attribute,
    Attrs,
    Input,
    Inputs,
    OpKind,
    RuleError,
    Step,
    as_float,
    check_matrix,
    given,
    known,
    present,
)


def _rule(inputs: Inputs, attrs: Attrs) -> list[tuple[tuple[int, ...], str]]:
    x, weight, bias = known(inputs, 0), known(inputs, 1), present(inputs, 2)
    if len(weight.shape) != 2 or not x.shape:
        raise RuleError(f"multiplies {x.shape} with a weight {weight.shape}")
    check_matrix(weight, attrs["transposed"])
    num_in, num_out = weight.shape if attrs["transposed"] else weight.shape[::-1]
    if x.shape[-1] != num_in:
        raise RuleError(f"multiplies {x.shape} with a weight of {num_in} inputs")
    if bias is not None and bias.shape != (num_out,):
        raise RuleError(f"has a bias {bias.shape} for {num_out} outputs")
    return [((*x.shape[:-1], num_out), x.dtype)]


def _reference(inputs: Sequence[Array | None], attrs: Attrs, step: Step) -> list[Array]:
    x, weight, bias = given(inputs, 0), as_float(given(inputs, 1)), present(inputs, 2)
    y = as_float(x) @ (weight if attrs["transposed"] else weight.T)
    if bias is not None:
        y = y + as_float(bias)
    return [y.astype(x.dtype, copy=False)]


def _flops(inputs: Inputs, attrs: Attrs, num_tokens: int, context_len: int) -> int:
    x, weight = known(inputs, 0), known(inputs, 1)
    rows = x.size // max(x.shape[-1], 1)
    return 2 * rows * weight.size * num_tokens


OP = OpKind(
    inputs=(
        Input("x"),
        Input("weight", ("weight",), MATRICES),
        Input("bias", ("weight",), is_optional=True),
    ),
    attributes=(Attribute("transposed", bool, False),),
    rule=_rule,
    reference=_reference,
    flops=_flops,
    summary="x · weightᵀ + bias",
)
