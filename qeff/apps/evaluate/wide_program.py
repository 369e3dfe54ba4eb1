"""The float form of a container that holds a program of ours: its panels as plain float32 arrays.

The result is for the reference engine, which computes each op as its definition says. Knows
programs and panels; nothing of sessions.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial

import numpy as np

from qeff.compile.lowering import SectionWriter
from qeff.compile.matrices import matrix_values
from qeff.compile.panels import unpack_panels
from qeff.container import Container, Program
from qeff.container.program import Value
from qeff.core.errors import ContainerError

PROGRAM = "program.json"
TARGET = "reference"
PANELS = np.dtype(np.uint8)  # what a matrix is stored as when it lies in panels


def widen(container: Container, out: SectionWriter) -> str | None:
    """Hand over the program with float32 matrices; None when it has no narrow panels."""
    try:
        program = Program.from_json(json.loads(container.read_bytes(PROGRAM)))
    except (ValueError, RecursionError) as error:
        raise ContainerError(f"{container.file(PROGRAM)} is malformed: {error}") from error
    stacks = {
        index: is_stack
        for index, is_stack in matrix_values(program).items()
        if container.weight(program.values[index].name).dtype == PANELS
    }
    if all(program.values[index].dtype == "f32" for index in stacks):
        return None
    values = list(program.values)
    for index, value in enumerate(program.values):
        if value.kind != "weight":
            continue
        produce = partial(container.weight, value.name)
        if index in stacks:
            values[index] = replace(value, dtype="f32")
            produce = partial(_unpack, container, value, stacks[index])
        out.add_weight(value.name, value.shape, values[index].dtype, produce)
    out.inputs, out.outputs = container.manifest.inputs, container.manifest.outputs
    data = replace(program, values=tuple(values)).to_json()
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    out.write_bytes(PROGRAM, text.encode())
    return TARGET


def _unpack(container: Container, value: Value, is_stack: bool) -> np.ndarray:
    shape = value.shape if is_stack else (value.shape[0], math.prod(value.shape[1:]))
    floats: np.ndarray = unpack_panels(container.weight(value.name), value.dtype, shape)
    return floats.reshape(value.shape)
