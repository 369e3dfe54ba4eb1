"""A packed program with the numbers that its container holds, as floats: the quantised reference.

What it gives runs on the reference interpreter, so that the error of the weights and the error of
an engine's own arithmetic can be told apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from qeff.compile.matrices import matrix_values
from qeff.compile.panels.unpacking import unpack_panels
from qeff.container.program import Program, Value


def dequantise(
    program: Program, read: Callable[[str], np.ndarray]
) -> tuple[Program, dict[str, np.ndarray]]:
    """The program over float32 matrices, and its weights; ``read`` gives a stored tensor."""
    stacks = matrix_values(program)
    values: list[Value] = list(program.values)
    arrays: dict[str, np.ndarray] = {}
    for index, value in enumerate(program.values):
        if value.kind != "weight":
            continue
        stored = read(value.name)
        if index in stacks:
            shape = value.shape if stacks[index] else (value.shape[0], math.prod(value.shape[1:]))
            stored = unpack_panels(stored, value.dtype, shape).reshape(value.shape)
            values[index] = replace(value, dtype="f32")
        arrays[value.name] = stored
    return replace(program, values=tuple(values)), arrays
