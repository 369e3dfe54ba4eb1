"""export: a prepared decoder becomes a certified graph. The whole story of this room, in order.

1. trace; 2. clean and fuse; 3. emit nodes; 4. check the numbers. Each step has a file of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import onnx_ir as ir
import torch
from torch.export import ExportedProgram

from qeff.core.progress import Event, Progress, silent
from qeff.core.spec import (
    AXIS_BATCH,
    AXIS_CTX,
    AXIS_SEQ,
    AXIS_SLOTS,
    BATCH_INDEX,
    INPUT_IDS,
    LOGITS,
    POSITION_IDS,
    RETAINED,
)
from qeff.export.artifact import Graph
from qeff.export.builder import DOMAIN, OPSET, Builder
from qeff.export.capture import capture
from qeff.export.emitter import DTYPES, Emitter
from qeff.export.functions import functions_for
from qeff.export.fuse import fuse_attention
from qeff.export.fxnode import Node
from qeff.export.masks import name_masks
from qeff.export.origin import WeightWriter
from qeff.transform.artifact import Prepared

IR_VERSION = 11


def export(prepared: Prepared, *, progress: Progress = silent) -> Graph:
    """The certified graph of a prepared decoder."""
    from qeff.export.parity import certify

    graph = draw(prepared, progress=progress)
    return replace(graph, certificate=certify(graph, prepared, progress=progress))


def draw(prepared: Prepared, *, progress: Progress = silent) -> Graph:
    """The graph without its certificate."""
    progress(Event("trace", 0, 3, "steps"))
    program = capture(prepared)
    progress(Event("trace", 1, 3, "steps"))
    fuse_attention(program)
    windows = name_masks(program, input_nodes(program, prepared))
    progress(Event("trace", 2, 3, "steps"))
    model = emit(program, prepared)
    caches = tuple(replace(c, window=windows.get(i, 0)) for i, c in enumerate(prepared.spec.caches))
    progress(Event("trace", 3, 3, "steps"))
    return Graph(model, replace(prepared.spec, caches=caches), prepared.options, {})


def input_names(prepared: Prepared) -> list[str]:
    """The graph's inputs in the order of the module's arguments."""
    names = [INPUT_IDS, POSITION_IDS, *prepared.spec.cache_names()]
    return [*names, BATCH_INDEX] if prepared.options.continuous_batching else names


def input_nodes(program: ExportedProgram, prepared: Prepared) -> dict[str, Node]:
    """The program's placeholders by the names of the graph's inputs."""
    by_name = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    nodes = [by_name[name] for name in program.graph_signature.user_inputs]
    return dict(zip(input_names(prepared), nodes, strict=True))


def emit(program: ExportedProgram, prepared: Prepared) -> ir.Model:
    """Write the program as an ONNX model."""
    build = Builder()
    nodes = input_nodes(program, prepared)
    weights = WeightWriter(build, prepared.weights, prepared.tensors)
    emitter = Emitter(program, _axis_names(nodes), weights)
    inputs = {}
    for name, node in nodes.items():
        inputs[name] = build.input(name, emitter.kind(node))
    results = emitter.run({node.name: inputs[name] for name, node in nodes.items()})
    outputs = _name_outputs(build, results, [LOGITS, *_retained(prepared)], set(inputs.values()))
    kept = _reachable(build, outputs)
    used = {value for node in kept for value in node.inputs if value is not None}
    stored = [value for value in build.initializers.values() if value in used]
    order = [INPUT_IDS, POSITION_IDS]
    order += [BATCH_INDEX] if BATCH_INDEX in inputs else []
    order += prepared.spec.cache_names()
    functions = functions_for(kept)
    graph = ir.Graph(
        [inputs[name] for name in order],
        outputs,
        nodes=kept,
        initializers=stored,
        opset_imports={"": OPSET, DOMAIN: 1},
        name=prepared.spec.architecture,
    )
    return ir.Model(graph, ir_version=IR_VERSION, functions=functions, producer_name="qeff")


def _retained(prepared: Prepared) -> list[str]:
    return [name + RETAINED for name in prepared.spec.cache_names()]


def _axis_names(nodes: dict[str, Node]) -> dict[str, str]:
    """Torch's symbols by the names of the axes they stand for."""
    found: dict[str, str] = {}
    for name, node in nodes.items():
        shape: Any = node.meta["val"].shape
        axes: tuple[str | None, ...] = (AXIS_BATCH, AXIS_SEQ)
        if name not in (INPUT_IDS, POSITION_IDS, BATCH_INDEX):
            axes = (AXIS_SLOTS if BATCH_INDEX in nodes else AXIS_BATCH, None, AXIS_CTX)
        for size, axis in zip(shape, axes, strict=False):
            if isinstance(size, torch.SymInt) and axis is not None:
                found.setdefault(str(size.node.expr), axis)
    return found


def _name_outputs(
    build: Builder, values: list[ir.Value], names: list[str], inputs: set[ir.Value]
) -> list[ir.Value]:
    outputs: list[ir.Value] = []
    build.scope = ""
    for value, name in zip(values, names, strict=True):
        if value in inputs or value in outputs or value.producer() is None:
            value = build.op("Identity", [value], {}, build.kind(value))
        value.name = name
        outputs.append(value)
    assert all(v.dtype in DTYPES.values() for v in outputs), "outputs have plain dtypes"
    return outputs


def _reachable(build: Builder, outputs: list[ir.Value]) -> list[ir.Node]:
    live = set(outputs)
    kept = []
    for node in reversed(build.nodes):
        if any(value in live for value in node.outputs):
            kept.append(node)
            live.update(value for value in node.inputs if value is not None)
        else:
            for i in range(len(node.inputs)):  # so that no value counts it as a user
                node.replace_input_with(i, None)
    return kept[::-1]
