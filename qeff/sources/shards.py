"""Which files hold a safetensors checkpoint's weights: one, or the shards that an index names.

Knows the index file only; the shards themselves are opened elsewhere.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

from qeff.core.errors import SourceError
from qeff.sources.json_file import read_json_object

WEIGHTS_FILE = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"

_HINT = "download the checkpoint again; every shard that the index names must be there"


def read_weight_map(folder: Path) -> dict[str, str] | None:
    """Tensor name to shard name as the index says it; None when the checkpoint is one file."""
    if (folder / WEIGHTS_FILE).is_file():
        return None
    path = folder / WEIGHTS_INDEX
    weight_map: Any = read_json_object(path, _HINT).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise SourceError(f"{path} has no weight_map", _HINT)
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str) or not _stays_inside(shard):
            raise SourceError(f"{path} names the bad file {shard!r} for tensor {tensor}", _HINT)
    return weight_map


def shard_names(folder: Path) -> list[str]:
    """The weight files of a folder, each checked to be there."""
    weight_map = read_weight_map(folder)
    names = [WEIGHTS_FILE] if weight_map is None else sorted(set(weight_map.values()))
    for name in names:
        if not (folder / name).is_file():
            raise SourceError(f"{folder / name} is missing, though the index names it", _HINT)
    return names


def _stays_inside(shard: str) -> bool:
    path = PurePosixPath(shard)
    return path.suffix == ".safetensors" and not path.is_absolute() and ".." not in path.parts
