"""moe: the sum over a token's chosen experts of weight · down(activation(up(x))).

``up`` is [experts, out, in] and ``down`` likewise, or [experts, in, out] when ``transposed``. With
a gate, up gives twice the features that down takes: the first half of them is the gate (``half``)
or the even ones are (``interleaved``). ``swiglu_clamped`` is (up + 1) · gate · sigmoid(alpha ·
gate) with the gate held below ``limit`` and up within ±``limit``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qeff.ops.base import (
    INTS,
    MATRICES,
    Arg,
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
from qeff.ops.functions import ACTIVATIONS, sigmoid

CLAMPED = "swiglu_clamped"


def _sizes(weight: Arg, is_transposed: bool) -> tuple[int, int, int]:
    """Experts, inputs and outputs of a stack of expert matrices."""
    if len(weight.shape) != 3:
        raise RuleError(f"has expert weights {weight.shape}")
    check_matrix(weight, is_transposed)
    experts, rows, columns = weight.shape
    return (experts, rows, columns) if is_transposed else (experts, columns, rows)


def _rule(inputs: Inputs, attrs: Attrs) -> list[tuple[tuple[int, ...], str]]:
    x, index, weight = known(inputs, 0), known(inputs, 1), known(inputs, 2)
    experts, up_in, up_out = _sizes(known(inputs, 3), attrs["transposed"])
    experts_down, down_in, down_out = _sizes(known(inputs, 4), attrs["transposed"])
    if len(x.shape) != 1 or len(index.shape) != 1 or index.shape != weight.shape:
        raise RuleError(f"has x {x.shape}, indices {index.shape}, weights {weight.shape}")
    expected = down_in if attrs["gate"] == "none" else 2 * down_in
    if experts != experts_down or x.shape[0] != up_in or up_out != expected:
        raise RuleError(f"has up {known(inputs, 3).shape} and down {known(inputs, 4).shape}")
    if attrs["activation"] == CLAMPED and attrs["gate"] == "none":
        raise RuleError(f"has the activation {CLAMPED} without a gate")
    for bias, size in ((present(inputs, 5), up_out), (present(inputs, 6), down_out)):
        if bias is not None and bias.shape != (experts, size):
            raise RuleError(f"has a bias {bias.shape} for {experts} experts of {size} outputs")
    return [((down_out,), x.dtype)]


def _activate(hidden: Array, attrs: Attrs) -> Array:
    """Apply the activation, and the gate when there is one."""
    if attrs["gate"] == "none":
        return np.asarray(ACTIVATIONS[attrs["activation"]](hidden))
    if attrs["gate"] == "half":
        half = hidden.shape[-1] // 2
        gate, up = hidden[..., :half], hidden[..., half:]
    else:
        gate, up = hidden[..., 0::2], hidden[..., 1::2]
    if attrs["activation"] != CLAMPED:
        return np.asarray(ACTIVATIONS[attrs["activation"]](gate) * up)
    limit = np.float32(attrs["limit"])
    gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return np.asarray((up + 1) * gate * sigmoid(np.float32(attrs["alpha"]) * gate))


def _reference(inputs: Sequence[Array | None], attrs: Attrs, step: Step) -> list[Array]:
    x, index, weight = as_float(given(inputs, 0)), given(inputs, 1), as_float(given(inputs, 2))
    up, down, up_bias, down_bias = given(inputs, 3), given(inputs, 4), *_biases(inputs)
    num_out = down.shape[2] if attrs["transposed"] else down.shape[1]
    out = np.zeros((len(x), num_out), np.float32)
    for expert in np.unique(index):
        token, place = np.nonzero(index == expert)
        up_e, down_e = as_float(up[expert]), as_float(down[expert])
        if not attrs["transposed"]:
            up_e, down_e = up_e.T, down_e.T
        hidden = x[token] @ up_e
        if up_bias is not None:
            hidden = hidden + as_float(up_bias[expert])
        y = _activate(hidden, attrs) @ down_e
        if down_bias is not None:
            y = y + as_float(down_bias[expert])
        np.add.at(out, token, weight[token, place][:, None] * y)
    return [out.astype(given(inputs, 0).dtype, copy=False)]


def _biases(inputs: Sequence[Array | None]) -> tuple[Array | None, Array | None]:
    return present(inputs, 5), present(inputs, 6)


def _flops(inputs: Inputs, attrs: Attrs, num_tokens: int, context_len: int) -> int:
    chosen, up, down = known(inputs, 1).shape[0], known(inputs, 3), known(inputs, 4)
    return 2 * chosen * (up.size + down.size) // max(up.shape[0], 1) * num_tokens


OP = OpKind(
    inputs=(
        Input("x"),
        Input("index", dtypes=INTS),
        Input("weight"),
        Input("up", ("weight",), MATRICES),
        Input("down", ("weight",), MATRICES),
        Input("up_bias", ("weight",), is_optional=True),
        Input("down_bias", ("weight",), is_optional=True),
    ),
    attributes=(
        Attribute("transposed", bool, False),
        Attribute("gate", str, "half", choices=("half", "interleaved", "none")),
        Attribute("activation", str, "silu", choices=(*sorted(ACTIVATIONS), CLAMPED)),
        Attribute("alpha", float, 1.702),
        Attribute("limit", float, 7.0, minimum=0.0),
    ),
    rule=_rule,
    reference=_reference,
    flops=_flops,
    summary="Σ weight · down(activation(up(x))) over the experts in `index`",
)
