"""Values that follow from positions alone, computed once for every position there may be.

Done with the ops' own references in numpy, so that angles keep their precision whatever the
activations have. Knows nothing of devices.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qeff.backends.cuda.session.flow import position_values
from qeff.container.program import ABSENT, Program
from qeff.ops import Step, kinds


def position_tables(
    program: Program, ctx_len: int, weight: Callable[[int], np.ndarray]
) -> dict[int, np.ndarray]:
    """What each such value is at positions 0 to ``ctx_len``; only what other ops read is kept."""
    fixed = position_values(program)
    last: dict[int, int] = {}
    for place, op in enumerate(program.ops):
        for index in op.inputs:
            if index in fixed:
                last[index] = place
    outside = {
        index for op in program.ops if op.outputs[0] not in fixed for index in op.inputs
    } & fixed
    for op in reversed(program.ops):  # rows asked for have the tables of tokens
        if op.kind == "gather_rows" and op.outputs[0] in outside:
            outside.add(op.inputs[0])
    count = reach(program, ctx_len)
    positions = np.arange(count, dtype=np.int64)
    step = Step(positions=positions, owners=positions, slots=positions, rows=positions)
    made: dict[int, np.ndarray] = {program.positions: positions}
    for place, op in enumerate(program.ops):
        if op.outputs[0] in fixed:
            inputs = [
                None if i == ABSENT else made[i] if i in made else weight(i) for i in op.inputs
            ]
            kind = kinds()[op.kind]
            results = kind.reference(inputs, kind.complete(op.attrs), step)
            made.update(zip(op.outputs, results, strict=True))
        for index in op.inputs:
            if last.get(index) == place and index not in outside:
                made.pop(index, None)
    return {index: array for index, array in made.items() if index in outside}


def reach(program: Program, ctx_len: int) -> int:
    """As many positions as every table of the program has rows for."""
    count = ctx_len
    for op in program.ops:
        if op.kind == "embed" and op.inputs[1] == program.positions:
            rows = program.values[op.inputs[0]].shape[0]
            count = min(count, rows - int(op.attrs.get("offset", 0)))
    return max(count, 0)
