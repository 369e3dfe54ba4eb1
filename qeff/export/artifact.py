"""Graph: an ONNX model with its spec, options and certificate; weights stay in the checkpoint.

Saved as an ONNX file that refers to checkpoint tensors by name, and a JSON file beside it. Loading
takes the tensors again from an opened checkpoint. Imports no torch.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from qeff.core.errors import SourceError
from qeff.core.options import ExportOptions
from qeff.core.spec import ModelSpec
from qeff.core.tensor import LazyTensor
from qeff.export.tensors import CheckpointTensor

MODEL_FILE = "graph.onnx"
INFO_FILE = "graph.json"
VERSION = 2


@dataclass(frozen=True, slots=True)
class Graph:
    """One ONNX model for prefill and decode."""

    model: ir.Model
    spec: ModelSpec
    options: ExportOptions
    certificate: Mapping[str, Any]

    def checkpoint_tensors(self) -> dict[str, CheckpointTensor]:
        """Initialisers whose values lie in the checkpoint, by name."""
        found = {}
        for name, value in self.model.graph.initializers.items():
            tensor: Any = value.const_value
            if isinstance(tensor, CheckpointTensor):
                found[name] = tensor
        return found

    def save(self, folder: Path) -> None:
        """Write the graph without any weight; the caller makes the folder appear at once."""
        folder.mkdir(parents=True, exist_ok=True)
        stored = self.checkpoint_tensors()
        with _referring(self.model, {name: t.external() for name, t in stored.items()}):
            ir.save(self.model, folder / MODEL_FILE)
        info = {
            "version": VERSION,
            "sha256": hashlib.sha256((folder / MODEL_FILE).read_bytes()).hexdigest(),
            "spec": self.spec.to_json(),
            "options": asdict(self.options),
            "certificate": dict(self.certificate),
            "tensors": {n: [t.lazy.format, list(t.lazy.shape)] for n, t in stored.items()},
        }
        text = json.dumps(info, indent=1, sort_keys=True) + "\n"
        (folder / INFO_FILE).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, tensors: Mapping[str, LazyTensor]) -> Graph:
        """Read a saved graph and take its weights from a checkpoint's tensors."""
        try:
            info = json.loads((folder / INFO_FILE).read_text(encoding="utf-8"))
            if info["version"] != VERSION:
                raise ValueError(f"it has the version {info['version']!r}, not {VERSION}")
            # The library that reads the model believes every byte of it.
            if hashlib.sha256((folder / MODEL_FILE).read_bytes()).hexdigest() != info["sha256"]:
                raise ValueError(f"{MODEL_FILE} was changed after it was written")
            model = ir.load(folder / MODEL_FILE)
            known = {name: (kind, tuple(shape)) for name, (kind, shape) in info["tensors"].items()}
            spec, options = ModelSpec.from_json(info["spec"]), ExportOptions(**info["options"])
            certificate = info["certificate"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SourceError(f"{folder} holds no graph: {error}", "export again") from error
        for name, value in model.graph.initializers.items():
            if name not in known:
                continue
            tensor = tensors.get(name)
            if tensor is None or (tensor.format, tuple(tensor.shape)) != known[name]:
                raise SourceError(
                    f"the checkpoint has no tensor {name} as the graph needs it", "export again"
                )
            value.const_value = CheckpointTensor(tensor)
        return cls(model, spec, options, certificate)

    def describe(self) -> dict[str, Any]:
        """What ``inspect`` prints: sizes, ops, signature, certificate."""
        graph = self.model.graph
        stored = self.checkpoint_tensors()
        ops = Counter(f"{n.domain}.{n.op_type}" if n.domain else n.op_type for n in graph)
        border = {v.name: [str(v.dtype), str(v.shape)] for v in (*graph.inputs, *graph.outputs)}
        return {
            "spec": self.spec.to_json(),
            "options": asdict(self.options),
            "nodes": sum(ops.values()),
            "ops": dict(ops.most_common()),
            "signature": border,
            "checkpoint tensors": len(stored),
            "formats": dict(Counter(t.lazy.format for t in stored.values())),
            "certificate": dict(self.certificate),
        }


@contextmanager
def _referring(model: ir.Model, places: Mapping[str, ir.ExternalTensor]) -> Iterator[None]:
    """Initialisers as references for as long as the context lasts, so that saving reads nothing."""
    values = model.graph.initializers
    before = {name: values[name].const_value for name in places}
    try:
        for name, place in places.items():
            values[name].const_value = place
        yield
    finally:
        for name, tensor in before.items():
            values[name].const_value = tensor


def save_referring(model: ir.Model, places: Mapping[str, ir.ExternalTensor], path: Path) -> None:
    """Save a model whose initialisers refer to these places."""
    with _referring(model, places):
        ir.save(model, path)
