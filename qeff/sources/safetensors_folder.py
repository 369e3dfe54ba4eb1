"""A folder of safetensors as a source: one file, or shards with an index, beside config.json.

Headers are read and checked when the source is opened; values are mapped when asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from qeff.core.errors import SourceError
from qeff.core.tensor import LazyTensor
from qeff.sources.folder_text import read_text_files
from qeff.sources.header_hash import hash_header
from qeff.sources.json_file import read_json_object
from qeff.sources.location import Location
from qeff.sources.safetensors_header import StoredTensor, read_header
from qeff.sources.shards import WEIGHTS_FILE, WEIGHTS_INDEX, read_weight_map

_CONFIG_HINT = "a checkpoint folder needs the config.json that its model was saved with"
_SHARD_HINT = "the index and its shards do not belong together; download the checkpoint again"


class SafetensorsSource:
    """An opened safetensors checkpoint."""

    kind = "safetensors"
    gguf_file: Path | None = None

    def __init__(self, location: Location) -> None:
        assert location.folder is not None, f"{location.path} is no folder of safetensors"
        self.location = location
        self.folder: Path | None = location.folder
        self.config: Mapping[str, Any] = read_config(location.folder)
        self.tensors: Mapping[str, LazyTensor] = read_tensors(location.folder)
        if location.has_heads:
            from qeff.sources.speculator import KEY, read_heads

            numbers, tensors = read_heads(location.folder)
            self.config = {**self.config, KEY: numbers}
            self.tensors = {**self.tensors, **tensors}

    @property
    def name(self) -> str:
        return self.location.name

    @cached_property
    def generation_config(self) -> Mapping[str, Any]:
        path = self.location.path / "generation_config.json"
        return read_json_object(path, "delete it or repair it") if path.is_file() else {}

    def text_files(self) -> dict[str, bytes]:
        return read_text_files(self.location.path, self.location.trust_remote_code)

    def header_hash(self) -> str:
        return hash_header(self.config, self.tensors)

    def content_hash(self) -> str:
        return self.location.content_hash()


def read_config(folder: Path) -> dict[str, Any]:
    """config.json, which must say what the model is."""
    path = folder / "config.json"
    config = read_json_object(path, _CONFIG_HINT)
    if not isinstance(config.get("model_type"), str) or not config["model_type"]:
        raise SourceError(
            f"{path} does not say which architecture the model has",
            "add model_type (and architectures) as the model's publisher has them",
        )
    architectures = config.get("architectures")
    if architectures is not None and not (
        isinstance(architectures, list) and all(isinstance(item, str) for item in architectures)
    ):
        raise SourceError(f"{path} has architectures that are no list of names", _CONFIG_HINT)
    return config


def read_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of the folder; what the index says must be what the shards hold."""
    weight_map = read_weight_map(folder)
    if weight_map is None:
        return read_header(folder / WEIGHTS_FILE)
    shards = {shard: read_header(folder / shard) for shard in sorted(set(weight_map.values()))}
    tensors = {}
    for name, shard in weight_map.items():
        if name not in shards[shard]:
            raise SourceError(
                f"{folder / shard} lacks the tensor {name}, which {WEIGHTS_INDEX} puts there",
                _SHARD_HINT,
            )
        tensors[name] = shards[shard][name]
    return tensors
