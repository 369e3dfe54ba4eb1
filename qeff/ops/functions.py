"""The scalar functions that ops apply to each element, by name, in float32.

``UNARY`` are those of one argument; ``ACTIVATIONS`` is the part of them that may stand in a gate.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from qeff.ops.base import Array

_erf = np.frompyfunc(math.erf, 1, 1)  # numpy has none; exact matters more than speed here


def erf(x: Array) -> Array:
    """The error function."""
    return np.asarray(_erf(x.astype(np.float64)), np.float64).astype(np.float32)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow for large negative x."""
    small = np.exp(-np.abs(x))  # in (0, 1]
    return np.asarray(np.where(x >= 0, 1 / (1 + small), small / (1 + small)))


def softplus(x: Array) -> Array:
    """log(1 + exp(x)), without overflow for large x."""
    return np.asarray(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))


def silu(x: Array) -> Array:
    """X * sigmoid(x)."""
    return np.asarray(x * sigmoid(x))


def gelu(x: Array) -> Array:
    """X times the normal distribution's cumulative function."""
    return np.asarray(np.float32(0.5) * x * (1 + erf(x / np.float32(math.sqrt(2)))))


def gelu_tanh(x: Array) -> Array:
    """The usual tanh approximation of gelu."""
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    return np.asarray(np.float32(0.5) * x * (1 + np.tanh(inner)))


def relu(x: Array) -> Array:
    """max(x, 0)."""
    return np.asarray(np.maximum(x, np.float32(0)))


def relu2(x: Array) -> Array:
    """max(x, 0) squared."""
    return np.asarray(np.square(relu(x)))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": relu,
    "relu2": relu2,
    "sigmoid": sigmoid,
    "tanh": np.tanh,
}

UNARY: dict[str, Callable[[Array], Array]] = {
    **ACTIVATIONS,
    "abs": np.abs,
    "ceil": np.ceil,
    "cos": np.cos,
    "erf": erf,
    "exp": np.exp,
    "floor": np.floor,
    "log": np.log,
    "neg": np.negative,
    "reciprocal": np.reciprocal,
    "round": np.round,  # halves to even
    "rsqrt": lambda x: np.reciprocal(np.sqrt(x)),
    "sign": np.sign,
    "sin": np.sin,
    "softplus": softplus,
    "sqrt": np.sqrt,
    "square": np.square,
}
