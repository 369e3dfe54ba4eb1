"""Which weights a decoded token reads: all but tables that are looked up and experts not chosen.

Counted from the program that the container holds; experts inside an ONNX graph count whole. Knows
programs; nothing of how they are run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from qeff.container import Container, Program
from qeff.container.format import WEIGHTS
from qeff.container.program import ABSENT, Op

GRAPH, PROGRAM = "program.onnx", "program.json"
_LOOK_UP = {"embed": 0, "Gather": 0}  # which input is a table, by the kind of op
_EXPERTS = "moe"
_CHOSEN = 1  # the input of such an op that names the experts of a token


def weights_bytes(container: Container) -> int:
    """The size of the weights file."""
    files = container.manifest.files
    return files[WEIGHTS].size if WEIGHTS in files else 0


def decode_bytes(container: Container) -> int:
    """Bytes of weights that one decoded token reads, a shared one once."""
    shares: dict[str, float] = {}
    for name, share in _uses(container):
        shares[name] = max(share, shares.get(name, 0.0))
    sizes = {name: container.weight(name).nbytes for name in container.weight_names}
    return int(sum(sizes[name] * share for name, share in shares.items() if name in sizes))


def _uses(container: Container) -> Iterator[tuple[str, float]]:
    """Every use of a weight: its name, and the share of it that one token reads."""
    if PROGRAM in container.manifest.files:
        program = Program.from_json(json.loads(container.read_bytes(PROGRAM)))
        for op in program.ops:
            for place, index in enumerate(op.inputs):
                if index != ABSENT and program.values[index].kind == "weight":
                    yield program.values[index].name, _share(program, op, place)
        return
    import onnx_ir as ir

    graph = ir.load(container.file(GRAPH)).graph
    for node in graph.all_nodes():
        for place, value in enumerate(node.inputs):
            if value is not None and value.name in graph.initializers:
                yield str(value.name), 0.0 if _LOOK_UP.get(node.op_type) == place else 1.0


def _share(program: Program, op: Op, place: int) -> float:
    if _LOOK_UP.get(op.kind) == place:
        return 0.0
    if op.kind == _EXPERTS:
        num_experts = program.values[op.inputs[place]].shape[0]
        num_chosen = program.values[op.inputs[_CHOSEN]].shape[0]
        return min(1.0, num_chosen / num_experts)
    return 1.0
