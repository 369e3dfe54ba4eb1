"""A folder with an ONNX file that runs as it is: weights linked beside it, or streamed as floats.

Plain checkpoint files are hard-linked (copied where the disk does not allow it); packed tensors
are written into one file of floats, one tensor at a time. Imports no torch.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import onnx_ir as ir

from qeff.core.errors import ResourceError
from qeff.core.progress import Event, Progress, silent
from qeff.core.tensor import FileRange
from qeff.export.artifact import Graph, save_referring
from qeff.export.tensors import CheckpointTensor

ALIGNMENT = 4096


def materialize(graph: Graph, folder: Path, *, progress: Progress = silent) -> Path:
    """Write the standalone ONNX into ``folder``; gives the path of the model file."""
    folder.mkdir(parents=True, exist_ok=True)
    model_path = folder / f"{graph.spec.name}.onnx"
    stored = graph.checkpoint_tensors()
    places: dict[str, ir.ExternalTensor] = {}
    linked: dict[Path, str] = {}
    try:
        for name, tensor in stored.items():
            if (place := tensor.lazy.location) is not None:
                places[name] = _external(tensor, _link(place, folder, linked), place.offset)
        packed = {name: tensor for name, tensor in stored.items() if name not in places}
        if packed:
            places |= _stream(packed, folder / f"{model_path.name}.data", progress)
        save_referring(graph.model, places, model_path)
    except OSError as error:
        raise ResourceError(
            f"{folder} cannot be written: {error.strerror or error}",
            "free disk space or choose another folder",
        ) from error
    return model_path


def _external(tensor: CheckpointTensor, file: str, offset: int) -> ir.ExternalTensor:
    return ir.ExternalTensor(
        file, offset, tensor.nbytes, tensor.dtype, shape=tensor.shape, name=str(tensor.name)
    )


def _link(place: FileRange, folder: Path, linked: dict[Path, str]) -> str:
    if place.path not in linked:
        target = folder / place.path.name
        real = (
            place.path.resolve()
        )  # a hub cache holds symlinks; the link must be to the file itself
        try:
            os.link(real, target)
        except FileExistsError:
            if not os.path.samefile(real, target):
                raise
        except OSError:
            shutil.copyfile(real, target)
        linked[place.path] = target.name
    return linked[place.path]


def _stream(
    tensors: dict[str, CheckpointTensor], path: Path, progress: Progress
) -> dict[str, ir.ExternalTensor]:
    places = {}
    total = sum(tensor.nbytes for tensor in tensors.values())
    done = 0
    with path.open("wb") as file:
        for name, tensor in tensors.items():
            file.seek(-file.tell() % ALIGNMENT, os.SEEK_CUR)
            offset = file.tell()
            values = np.ascontiguousarray(tensor.numpy())
            file.write(values.reshape(-1).view(np.uint8).data)
            places[name] = _external(tensor, path.name, offset)
            done += tensor.nbytes
            progress(Event("write onnx", done, total))
    return places
