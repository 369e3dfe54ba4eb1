"""Which weights a decoded token reads: all but tables that are looked up and experts not chosen.

Counted from the program that the container holds; experts inside an ONNX graph count whole. Knows
programs; nothing of how they are run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping

from qeff.container import Container, Program
from qeff.container.format import WEIGHTS
from qeff.container.program import ABSENT, Op
from qeff.core.formats import FORMATS

GRAPH, PROGRAM = "program.onnx", "program.json"
_LOOK_UP = {"embed": 0, "Gather": 0}  # which input is a table, by the kind of op
_EXPERTS = "moe"
_SCALES = ".scales"
_CHOSEN = 1  # the input of such an op that names the experts of a token


def weights_bytes(container: Container) -> int:
    """The size of the weights file, and of the matrices that are drawn instead of stored."""
    files = container.manifest.files
    stored = files[WEIGHTS].size if WEIGHTS in files else 0
    return stored + sum(_drawn_bytes(container).values())


def decode_bytes(container: Container) -> int:
    """Bytes of weights that one decoded token reads, a shared one once."""
    shares: dict[str, float] = {}
    for name, share in _uses(container):
        shares[name] = max(share, shares.get(name, 0.0))
    sizes = {name: container.weight(name).nbytes for name in container.weight_names}
    drawn = _drawn_bytes(container)
    return int(sum(_bytes_of(name, sizes, drawn) * share for name, share in shares.items()))


def _bytes_of(name: str, sizes: Mapping[str, int], drawn: Mapping[str, int]) -> int:
    """What a weight takes: its scales may lie beside it, or it is drawn where it is used."""
    return sizes.get(name, 0) + sizes.get(name + _SCALES, 0) + drawn.get(name, 0)


def _drawn_bytes(container: Container) -> dict[str, int]:
    """The sizes of matrices that no file holds."""
    if PROGRAM not in container.manifest.files:
        return {}
    data = json.loads(container.read_bytes(PROGRAM))
    drawn = set(data.get("engine", {}).get("drawn", ()))
    found = {}
    for value in Program.from_json(data).weights():
        if value.name in drawn:
            form = FORMATS["f8_e4m3" if value.dtype == "fp8" else value.dtype]
            blocks = -(-value.shape[-1] // form.block_len)
            found[value.name] = math.prod(value.shape[:-1]) * blocks * form.block_bytes
    return found


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
