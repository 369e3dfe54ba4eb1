"""matmul: for each token, the product of two stacks of matrices [..., m, k] and [..., k, n].

The second may be a weight. Leading inner axes broadcast. For weight matrices without leading axes
there is ``linear``.
"""

from __future__ import annotations

from collections.abc import Sequence

from qeff.ops.base import (
    Arg,
    Array,
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


def _rule(inputs: Inputs, attrs: Attrs) -> list[tuple[tuple[int, ...], str]]:
    a, b = known(inputs, 0), known(inputs, 1)
    if len(a.shape) < 2 or len(b.shape) < 2 or a.shape[-1] != b.shape[-2]:
        raise RuleError(f"multiplies {a.shape} with {b.shape}")
    stack = broadcast([Arg(a.kind, a.shape[:-2], a.dtype), Arg(b.kind, b.shape[:-2], b.dtype)])
    return [((*stack, a.shape[-2], b.shape[-1]), same_dtype([a, b]))]


def _reference(inputs: Sequence[Array | None], attrs: Attrs, step: Step) -> list[Array]:
    a, b = given(inputs, 0), given(inputs, 1)
    return [(as_float(a) @ as_float(b)).astype(a.dtype, copy=False)]


def _flops(inputs: Inputs, attrs: Attrs, num_tokens: int, context_len: int) -> int:
    a, b = known(inputs, 0), known(inputs, 1)
    (shape, _), *_ = _rule(inputs, attrs)
    num_outputs = 1
    for size in shape:
        num_outputs *= size
    assert a.shape[-1] == b.shape[-2], "the rule was not asked first"
    return 2 * num_outputs * a.shape[-1] * num_tokens


OP = OpKind(
    inputs=(Input("a"), Input("b", ("token", "row", "weight"))),
    rule=_rule,
    reference=_reference,
    flops=_flops,
    summary="a · b, matrix by matrix",
)
