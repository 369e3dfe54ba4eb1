"""What is in a checkpoint, a graph or a container, as plain values.

Finds out which of the three a path is by looking at its files. How it is shown is the caller's
business.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qeff.apps.container_path import resolve
from qeff.core.errors import ContainerError, SourceError
from qeff.core.formats import FORMATS
from qeff.core.progress import Progress, silent
from qeff.sources import Location, locate, open_source

if TYPE_CHECKING:
    from qeff.container import Container
    from qeff.sources import Source

PROGRAM = "program.json"  # of containers for engines of ours

# What a config says about size, by Hugging Face's names.
_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "vocab_size",
    "num_experts",
    "num_local_experts",
    "sliding_window",
)


def describe(
    path: str | None, *, verify: bool = False, progress: Progress = silent
) -> dict[str, Any]:
    """Kind and contents of whatever is at a path; ``verify`` hashes every byte of it."""
    if path is not None:
        if folder := resolve(path):
            return describe_container(folder, verify=verify)
        if folder := graph_at(Path(path).expanduser()):
            return describe_graph(folder)
    return describe_checkpoint(locate(path, progress=progress), verify=verify)


def graph_at(path: Path) -> Path | None:
    """The folder of an exported graph, None when the path is no such thing."""
    if path.suffix == ".onnx" and path.is_file():
        return path.parent
    return path if path.is_dir() and any(path.glob("*.onnx")) else None


def describe_container(folder: Path, *, verify: bool = False) -> dict[str, Any]:
    """A container, opened and checked."""
    from qeff.container import Container

    opened = Container.open(folder, verify="full" if verify else "fast")
    found = {"what": "container", "path": str(folder), **opened.describe()}
    if PROGRAM in opened.manifest.files:
        found["program"], sizes = describe_program(opened)
        found["weights"] = {**found["weights"], "bytes_by_format": sizes}
    return found


def describe_program(container: Container) -> tuple[dict[str, Any], dict[str, int]]:
    """The program of an engine of ours, and the bytes of its weights by the formats it gives them.

    The weights file itself knows packed matrices as bytes only.
    """
    from qeff.container.program import Program

    try:
        data = json.loads(container.read_bytes(PROGRAM))
    except (ValueError, RecursionError) as error:
        where = container.file(PROGRAM)
        raise ContainerError(f"{where} is malformed: {error}", "compile again") from error
    program = Program.from_json(data)
    sizes: Counter[str] = Counter()
    for value in program.weights():
        sizes[value.dtype] += container.weight(value.name).nbytes
    ops = Counter(op.kind for op in program.ops)
    facts = {"ops": dict(ops.most_common()), "engine": data.get("engine", {})}
    return facts, dict(sorted(sizes.items()))


def describe_graph(folder: Path) -> dict[str, Any]:
    """An exported graph, by what is written beside it; its checkpoint is not opened."""
    from qeff.export.artifact import INFO_FILE, Graph

    try:
        stored = json.loads((folder / INFO_FILE).read_text())["tensors"]
        headers = {name: Header(name, tuple(shape), kind) for name, (kind, shape) in stored.items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SourceError(
            f"{folder} holds no graph of ours: {error}", "write it with qeff export"
        ) from error
    size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    found = Graph.load(folder, headers).describe()
    return {"what": "graph", "path": str(folder), "total_bytes": size, **found}


@dataclass(frozen=True, slots=True)
class Header:
    """A tensor of which only the header is known."""

    name: str
    shape: tuple[int, ...]
    format: str
    location: None = None

    def read(self) -> np.ndarray:
        """There are no values to read."""
        raise AssertionError(f"{self.name} is a header")

    raw = read


def describe_checkpoint(location: Location, *, verify: bool = False) -> dict[str, Any]:
    """A checkpoint: headers only, unless every byte is to be hashed."""
    source = open_source(location)
    config = source.config
    formats: Counter[str] = Counter()
    for tensor in source.tensors.values():
        formats[tensor.format] += FORMATS[tensor.format].num_bytes(math.prod(tensor.shape))
    found = {
        "what": "checkpoint",
        "path": str(location.path),
        "name": location.name,
        "kind": location.kind,
        "architecture": next(iter(config.get("architectures") or ()), None),
        "model_type": config.get("model_type"),
        "num_params": sum(math.prod(tensor.shape) for tensor in source.tensors.values()),
        "total_bytes": sum(path.stat().st_size for path in location.files),
        "config": {name: config[name] for name in _SIZES if config.get(name) is not None},
        "weights": {
            "tensors": len(source.tensors),
            "bytes_by_format": dict(sorted(formats.items())),
        },
        "text": describe_text(source),
    }
    return found | ({"sha256": location.content_hash()} if verify else {})


def describe_text(source: Source) -> dict[str, Any]:
    """The files that turn text into tokens, and whether there is a chat template."""
    files = source.text_files()
    in_config = b'"chat_template"' in files.get("tokenizer_config.json", b"")
    return {
        "files": {name: len(data) for name, data in sorted(files.items())},
        "has_chat_template": "chat_template.jinja" in files or in_config,
    }
