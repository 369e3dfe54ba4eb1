"""Who takes part: containers of ours, and peers whose model files are there.

All are made of one checkpoint: ours from the same half-precision GGUF file that llama.cpp's
quantiser was given. Says of each how many bytes its weights take, so that equal bits can be seen to
be equal. Knows neither measurements nor bars.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from qeff.container import Container, Program

PROGRAM = "program.json"
BASE_GGUF = "gguf/f16.gguf"
BASE_FOLDER = "hf"  # the same checkpoint for transformers, with its tokenizer
WEIGHT_FILES = (".gguf", ".onnx", ".data", ".safetensors", ".bin")

SPEED = ("single", "batch")
ALL_TASKS = (*SPEED, "divergence")


@dataclass(frozen=True, slots=True)
class Contestant:
    """One engine with one model; what a token costs is told where a program says it."""

    name: str
    engine: str
    model: str
    bits: int  # of a weight of a linear layer, scales not counted
    is_ours: bool
    tasks: tuple[str, ...]
    weights_bytes: int
    bytes_per_token: int | None = None  # read by a decode step, cache not counted
    macs_per_token: int | None = None  # of linear layers, head not counted
    macs_per_row: int | None = None  # of the head, for a row of logits


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer that may be there: its engine, and its model under the peers' folder."""

    engine: str
    path: str
    bits: int
    tasks: tuple[str, ...]


PEERS = {
    "llama.cpp Q4_0": Peer("llamacpp", "gguf/q4_0.gguf", 4, ALL_TASKS),
    "llama.cpp Q4_0 pure": Peer("llamacpp", "gguf/q4_0-pure.gguf", 4, ALL_TASKS),
    "llama.cpp Q8_0": Peer("llamacpp", "gguf/q8_0.gguf", 8, ("single", "divergence")),
    "onnxruntime-genai int4": Peer("ort_genai", "ort-int4", 4, SPEED),
    "onnxruntime-genai int8": Peer("ort_genai", "ort-int8", 8, ("single",)),
}


@dataclass(frozen=True, slots=True)
class Precision:
    """How a container of ours is compiled; overrides are pairs of a pattern and a precision."""

    precision: str
    bits: int
    tasks: tuple[str, ...]
    overrides: tuple[tuple[str, str], ...] = ()


OURS = {
    "int4": Precision("int4", 4, ALL_TASKS),
    # Head and embeddings have 4 bits, too, as in a pure Q4_0 file.
    "int4 all": Precision("int4", 4, ALL_TASKS, (("*", "int4"),)),
    "int8": Precision("int8", 8, ("single", "divergence")),
    "mxfp6": Precision("mxfp6", 6, ("single", "divergence")),
}


def open_ours(name: str, folder: Path, bits: int, tasks: tuple[str, ...]) -> Contestant:
    """A container as a contestant."""
    container = Container.open(folder)
    return Contestant(
        name, "container", str(folder), bits, True, tasks, weights_bytes(folder), **costs(container)
    )


def open_peer(name: str, models: Path) -> Contestant | None:
    """A peer as a contestant; None when it has no model there."""
    peer = PEERS[name]
    path = models / peer.path
    if not path.exists():
        return None
    return Contestant(
        name, peer.engine, str(path), peer.bits, False, peer.tasks, weights_bytes(path)
    )


def weights_bytes(path: Path) -> int:
    """Bytes of the file, or of the files in the folder that hold weights."""
    if path.is_file():
        return path.stat().st_size
    files = [item for item in path.iterdir() if item.suffix in WEIGHT_FILES]
    return sum(item.stat().st_size for item in files)


def costs(container: Container) -> dict[str, int]:
    """Bytes that a decode step reads, and multiplications, as the container's program has them."""
    if PROGRAM not in container.manifest.files:
        return {}
    program = Program.from_json(json.loads(container.read_bytes(PROGRAM)))
    read: dict[str, int] = {}
    macs = {"token": 0, "row": 0}
    for op in program.ops:
        if op.kind == "embed":
            continue  # one row of a table is next to nothing
        used = [program.values[i] for i in op.inputs if i >= 0]
        weights = [value for value in used if value.kind == "weight"]
        read |= {value.name: container.weight(value.name).nbytes for value in weights}
        if op.kind == "linear":
            matrix = next(value for value in weights if len(value.shape) > 1)
            macs[program.values[op.outputs[0]].kind] += math.prod(matrix.shape)
    return {
        "bytes_per_token": sum(read.values()),
        "macs_per_token": macs["token"],
        "macs_per_row": macs["row"],
    }
