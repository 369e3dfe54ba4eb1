"""Traces a prepared decoder with torch.export and cleans the program of what only torch needs.

Gives the functional program over symbolic batch, sequence and context lengths. Knows nothing
about ONNX.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.export import Dim, ExportedProgram

from qeff.core.errors import UnsupportedModel
from qeff.core.progress import log
from qeff.core.spec import AXIS_BATCH, AXIS_CTX, AXIS_SEQ, AXIS_SLOTS
from qeff.export.functional import make_functional
from qeff.transform.artifact import Prepared

# Sizes of the example: all different, so that no two axes are taken for one.
BATCH, SEQ, CTX, SLOTS = 2, 5, 24, 7
MAX_SEQ, MAX_CTX, MAX_BATCH = 1 << 20, 1 << 24, 1 << 16


def capture(prepared: Prepared) -> ExportedProgram:
    """The traced program, functional and without checks."""
    program = _trace(prepared)
    if not make_functional(program.graph):
        program = program.run_decompositions({})
    for node in reversed(list(program.graph.nodes)):
        if node.op == "call_function" and "assert" in str(node.target) and not node.users:
            program.graph.erase_node(node)
    program.graph.eliminate_dead_code()
    return program


def _trace(prepared: Prepared) -> ExportedProgram:
    module = prepared.module
    parameter: Any = next(module.parameters()).data
    with parameter.fake_mode:
        inputs = _example(prepared)
    # A table of the model may end before the longest context; torch then refuses, unless asked to
    # leave such limits to the run. A mask that gets a name later needs no table at all. A model
    # that compares the length of a step with its table is told that no step is longer.
    for defer, max_seq in ((False, None), (True, None), (True, prepared.spec.max_positions)):
        try:
            with prepared.tracing(), torch.no_grad():
                return torch.export.export(
                    module,
                    inputs,
                    dynamic_shapes=_axes(prepared, max_seq or MAX_SEQ),
                    strict=False,
                    prefer_deferred_runtime_asserts_over_guards=defer,
                )
        except (RuntimeError, ValueError, torch._dynamo.exc.UserError) as error:
            log.debug("torch.export failed", exc_info=True)
            failure = error
            if "Constraints violated" not in str(error):
                break
    reason = str(failure).strip().splitlines()[0]
    raise UnsupportedModel(
        f"{prepared.spec.architecture} cannot be traced: {reason}",
        "its code decides by values or lengths in a way that one graph cannot follow",
    ) from failure


def _example(prepared: Prepared) -> tuple[Any, ...]:
    rows = SLOTS if prepared.options.continuous_batching else BATCH
    caches = []
    for layer in prepared.spec.caches:
        dims = (layer.key_dim, layer.value_dim)
        caches += [torch.zeros(rows, layer.num_kv_heads, CTX, dim) for dim in dims]
    tokens = torch.zeros(BATCH, SEQ, dtype=torch.int64)
    inputs = (tokens, torch.zeros(BATCH, SEQ, dtype=torch.int64), caches)
    if prepared.options.continuous_batching:
        return (*inputs, torch.zeros(BATCH, 1, dtype=torch.int64))
    return inputs


def _axes(prepared: Prepared, max_seq: int) -> tuple[Any, ...]:
    batch = Dim(AXIS_BATCH, min=1, max=MAX_BATCH)
    seq = Dim(AXIS_SEQ, min=1, max=max_seq)
    ctx = Dim(AXIS_CTX, min=4, max=MAX_CTX)
    continuous = prepared.options.continuous_batching
    rows = Dim(AXIS_SLOTS, min=1, max=MAX_BATCH) if continuous else batch
    tokens = {0: batch, 1: seq}
    axes = (tokens, dict(tokens), [{0: rows, 2: ctx} for _ in prepared.spec.cache_names()])
    return (*axes, {0: batch}) if continuous else axes
