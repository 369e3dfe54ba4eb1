"""Heads that guess the tokens to come, beside a checkpoint: what they are and their tensors.

``speculator_config.json`` says how many heads there are and how many residual blocks each has,
``speculator.safetensors`` holds a linear layer for each block. A checkpoint with its heads is
another checkpoint, with another hash. Knows nothing of how they are used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qeff.core.errors import SourceError
from qeff.core.tensor import LazyTensor
from qeff.sources.json_file import read_json_object
from qeff.sources.location import SAFETENSORS, Location
from qeff.sources.safetensors_header import read_header

CONFIG_FILE = "speculator_config.json"
WEIGHTS_FILE = "speculator.safetensors"
KEY = "speculator"  # of a source's config, and what the heads' tensors are called by
_PREFIX = "projections."
_HINT = f"a model with heads has {CONFIG_FILE} and {WEIGHTS_FILE} in its folder"
MAX_HEADS, MAX_LAYERS = 16, 16


def with_heads(location: Location) -> Location:
    """The checkpoint together with its heads; it must have them."""
    if location.kind != SAFETENSORS:
        raise SourceError(f"{location.name} is no folder of safetensors and has no heads", _HINT)
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (location.path / name).is_file():
            raise SourceError(f"{location.path} has no {name}", _HINT)
    if location.has_heads:
        return location
    files = (*location.files, location.path / WEIGHTS_FILE)
    return replace(location, files=files, has_heads=True)


def read_heads(folder: Path) -> tuple[dict[str, int], Mapping[str, LazyTensor]]:
    """The number of heads and of each one's blocks, and their tensors under the model's names."""
    config = read_json_object(folder / CONFIG_FILE, _HINT)
    numbers = {
        "num_heads": _number(folder, config, "turbo_num_heads", MAX_HEADS),
        "num_layers": _number(folder, config, "turbo_num_layers", MAX_LAYERS),
    }
    tensors = read_header(folder / WEIGHTS_FILE)
    return numbers, {f"{KEY}.{name.removeprefix(_PREFIX)}": t for name, t in tensors.items()}


def write_heads(
    folder: Path,
    numbers: Mapping[str, int],
    hidden_size: int,
    draw: Callable[[tuple[int, ...]], np.ndarray],
) -> None:
    """Put heads into a checkpoint's folder, their values as ``draw`` gives them for a shape."""
    from safetensors.numpy import save_file

    tensors = {}
    for head in range(numbers["num_heads"]):
        for layer in range(numbers["num_layers"]):
            for name, shape in (("weight", (hidden_size, hidden_size)), ("bias", (hidden_size,))):
                values = np.ascontiguousarray(draw(shape), np.float32)
                tensors[f"{_PREFIX}{head}.{layer}.linear.{name}"] = values
    save_file(tensors, folder / WEIGHTS_FILE)
    config = {f"turbo_{name}": value for name, value in numbers.items()}
    (folder / CONFIG_FILE).write_text(json.dumps(config))


def _number(folder: Path, config: Mapping[str, Any], name: str, most: int) -> int:
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise SourceError(
            f"{folder / CONFIG_FILE} has the {name} {value!r}", f"it must be from 1 to {most}"
        )
    return value
