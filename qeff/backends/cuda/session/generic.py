"""Every op kind that has no kernel of its own, as torch calls: element by element, or over an axis.

The numbers are those of the references in ``qeff.ops``: floats are computed in float32. Knows
nothing of programs; what moves elements without computing is in ``generic_moves``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from qeff.backends.cuda.session.kernels.norm import normalise
from qeff.backends.cuda.session.step_info import StepInfo

DTYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "bool": torch.bool,
}
Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Call:
    """One op on one step; ``like`` is the float type of its inputs that are no weights."""

    inputs: Sequence[Tensor | None]
    attrs: Mapping[str, Any]
    like: torch.dtype
    info: StepInfo

    def given(self, index: int) -> Tensor:
        """A required input."""
        tensor = self.inputs[index]
        assert tensor is not None, f"required input {index} is absent"
        return tensor

    def optional(self, index: int) -> Tensor | None:
        """An input that may be left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def narrow(self, y: Tensor) -> Tensor:
        """A float result in the type that the op gives."""
        return y.to(self.like) if y.is_floating_point() else y


def wide(x: Tensor) -> Tensor:
    """Floats in float32, in which every op computes."""
    return x.float() if x.is_floating_point() else x


def _relu2(x: Tensor) -> Tensor:
    return functional.relu(x).square()


def _gelu_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": functional.relu,
    "relu2": _relu2,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    **ACTIVATIONS,
    "abs": torch.abs,
    "ceil": torch.ceil,
    "cos": torch.cos,
    "erf": torch.erf,
    "exp": torch.exp,
    "floor": torch.floor,
    "log": torch.log,
    "neg": torch.neg,
    "not": torch.logical_not,
    "reciprocal": torch.reciprocal,
    "round": torch.round,
    "rsqrt": torch.rsqrt,
    "sign": torch.sign,
    "sin": torch.sin,
    "softplus": lambda x: functional.softplus(x, threshold=math.inf),
    "sqrt": torch.sqrt,
    "square": torch.square,
}


def _divide(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b, rounding_mode=None if a.is_floating_point() else "trunc")


BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "div": _divide,
    "fmod": torch.fmod,
    "max": torch.maximum,
    "min": torch.minimum,
    "mod": torch.remainder,
    "mul": torch.mul,
    "pow": torch.pow,
    "sub": torch.sub,
    "eq": torch.eq,
    "ge": torch.ge,
    "gt": torch.gt,
    "le": torch.le,
    "lt": torch.lt,
    "ne": torch.ne,
    "and": torch.logical_and,
    "or": torch.logical_or,
    "xor": torch.logical_xor,
}


def unary(call: Call) -> list[Tensor]:
    """function(x)."""
    return [call.narrow(UNARY[call.attrs["function"]](wide(call.given(0))))]


def binary(call: Call) -> list[Tensor]:
    """function(a, b)."""
    function = BINARY[call.attrs["function"]]
    return [call.narrow(function(wide(call.given(0)), wide(call.given(1))))]


def where(call: Call) -> list[Tensor]:
    """Either a or b."""
    return [call.narrow(torch.where(call.given(0), wide(call.given(1)), wide(call.given(2))))]


def cast(call: Call) -> list[Tensor]:
    """Another element type."""
    return [call.given(0).to(DTYPES[call.attrs["to"]])]


def gated(call: Call) -> list[Tensor]:
    """activation(gate) · up."""
    activation = ACTIVATIONS[call.attrs["activation"]]
    return [call.narrow(activation(wide(call.given(0))) * wide(call.given(1)))]


def norm(call: Call) -> list[Tensor]:
    """Unit size along the last axis, then gain and shift."""
    x = call.given(0)
    rows = x.reshape(-1, x.shape[-1])
    out = torch.empty(rows.shape, dtype=call.like, device=x.device)
    is_layer = call.attrs["function"] == "layer"
    normalise(rows, call.optional(1), call.optional(2), call.attrs["eps"], out, is_layer=is_layer)
    return [out.view(x.shape)]


def rope(call: Call) -> list[Tensor]:
    """Rotate pairs of features."""
    x = wide(call.given(0))
    cos, sin = wide(call.given(1)), wide(call.given(2))
    half = cos.shape[-1]
    lift = (len(x), *(1,) * (x.dim() - 2), half)
    cos, sin = cos.reshape(lift), sin.reshape(lift)
    if call.attrs["interleaved"]:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    else:
        first, second = slice(0, half), slice(half, 2 * half)
    a, b = x[..., first], x[..., second]
    y = torch.empty_like(x)
    y[..., first] = a * cos - b * sin
    y[..., second] = a * sin + b * cos
    y[..., 2 * half :] = x[..., 2 * half :]
    return [call.narrow(y)]


def matmul(call: Call) -> list[Tensor]:
    """The product of matrices."""
    a, b = call.given(0), call.given(1)
    if a.dtype == b.dtype and a.is_cuda:  # sums are in float32 there
        return [call.narrow(a @ b)]
    return [call.narrow(wide(a) @ wide(b))]


def softmax(call: Call) -> list[Tensor]:
    """exp(x) / Σ exp(x)."""
    return [call.narrow(torch.softmax(wide(call.given(0)), call.attrs["axis"] + 1))]


def cumsum(call: Call) -> list[Tensor]:
    """Running sums."""
    x = call.given(0)
    y = torch.cumsum(wide(x), call.attrs["axis"] + 1)
    return [y.to(x.dtype)]


def reduce(call: Call) -> list[Tensor]:
    """Sum, mean, product, largest or smallest over inner axes."""
    x = call.given(0)
    axes = sorted(axis + 1 for axis in call.attrs["axes"])
    keep, function, y = call.attrs["keepdims"], call.attrs["function"], wide(x)
    if not axes:
        return [x]
    if function in ("sum", "mean"):
        made = y.sum(axes, keepdim=keep)
        if function == "mean":
            count = math.prod(x.shape[axis] for axis in axes)
            made = made / count if x.is_floating_point() else _mean_of_whole(made, count)
    elif function in ("max", "min"):
        made = (torch.amax if function == "max" else torch.amin)(y, axes, keepdim=keep)
    else:
        made = y
        for axis in reversed(axes):
            made = made.prod(axis, keepdim=keep)
    return [made.to(x.dtype)]


def _mean_of_whole(total: Tensor, count: int) -> Tensor:
    return (total.double() / count).trunc()


def topk(call: Call) -> list[Tensor]:
    """The best k, of equals the first."""
    axis = call.attrs["axis"] + 1
    values, index = torch.sort(
        call.given(0), dim=axis, descending=call.attrs["largest"], stable=True
    )
    k = call.attrs["k"]
    return [values.narrow(axis, 0, k), index.narrow(axis, 0, k)]


def reduce_span(call: Call) -> list[Tensor]:
    """Largest or smallest over the tokens of a sequence."""
    x, info = call.given(0), call.info
    flat = x.reshape(len(x), -1)
    owners = info.owners[: len(x)].long()
    index = owners[:, None].expand(-1, flat.shape[1])
    start = flat.new_zeros((info.num_spans, flat.shape[1]))
    how = "amax" if call.attrs["function"] == "max" else "amin"
    made = start.scatter_reduce(0, index, flat, how, include_self=False)
    return [made.index_select(0, owners).reshape(x.shape)]


COMPUTE: dict[str, Callable[[Call], list[Tensor]]] = {
    item.__name__: item
    for item in (
        unary,
        binary,
        where,
        cast,
        gated,
        norm,
        rope,
        matmul,
        softmax,
        cumsum,
        reduce,
        topk,
        reduce_span,
    )
}
