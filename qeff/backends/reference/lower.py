"""Build for the reference engine: the program as JSON, and its weights as the checkpoint has them.

Knows nothing of how the program is run.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from qeff.compile.lowering import SectionWriter, refuse_overrides, token_border
from qeff.compile.passes.fold import values_of
from qeff.compile.plan import plan
from qeff.core.errors import CompileError
from qeff.core.options import CompileOptions

if TYPE_CHECKING:
    from qeff.export.artifact import Graph

PROGRAM = "program.json"


def lower(graph: Graph, options: CompileOptions, out: SectionWriter) -> None:
    """Hand over program.json and a promise for each of its weights."""
    if options.precision not in ("auto", "fp32") or options.kv_precision not in ("auto", "fp32"):
        raise CompileError(
            f"the reference engine computes in fp32 only, not in {options.precision}"
            f" with a cache of {options.kv_precision}",
            "leave the precision out",
        )
    refuse_overrides(options)
    program, tensors = plan(graph)
    for value in program.weights():
        tensor = tensors[value.name]
        out.add_weight(value.name, value.shape, value.dtype, partial(_values, tensor))
    out.inputs, out.outputs = token_border(program)
    formats = sorted({value.dtype for value in program.weights()})
    out.precision = {"weights": "+".join(formats), "kv": "fp32"}
    text = json.dumps(program.to_json(), sort_keys=True, separators=(",", ":"), allow_nan=False)
    out.write_bytes(PROGRAM, text.encode())


def _values(tensor: ir.TensorProtocol) -> np.ndarray:
    return np.asarray(values_of(tensor))
