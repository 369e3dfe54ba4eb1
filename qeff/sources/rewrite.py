"""A folder of safetensors written again with some rows repeated, byte by byte.

Shards keep their names; a tensor goes through memory one head at a time, whatever its dtype.
Everything else that belongs to the checkpoint (tokenizer, templates, code) is copied. Knows nothing
of why rows are repeated.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from qeff.sources.json_file import read_json_object
from qeff.sources.safetensors_header import read_header
from qeff.sources.shards import WEIGHTS_INDEX, shard_names

CONFIG = "config.json"
COPY_BYTES = 1 << 24
_ALIGNMENT = 8
# Weights in other forms would still be the old ones.
_WEIGHTS = {
    ".bin", ".safetensors", ".pt", ".pth", ".ckpt", ".gguf", ".onnx", ".h5", ".msgpack", ".ot",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Repeat:
    """The first axis is cut into ``pieces``, and each piece is there ``times`` in a row."""

    pieces: int
    times: int


def rewrite_folder(
    folder: Path, out: Path, repeats: Mapping[str, Repeat], config: Mapping[str, Any]
) -> None:
    """Write the checkpoint of ``folder`` into ``out`` with these tensors and this config."""
    shards = shard_names(folder)
    added = sum(_rewrite_shard(folder / name, out / name, repeats) for name in shards)
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name != CONFIG and path.suffix not in _WEIGHTS:
            shutil.copyfile(path, out / path.name)
    (out / CONFIG).write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", "utf-8")
    if (folder / WEIGHTS_INDEX).is_file():
        index = read_json_object(folder / WEIGHTS_INDEX, "download the checkpoint again")
        metadata: Any = index.get("metadata")
        if isinstance(metadata, dict) and isinstance(metadata.get("total_size"), int):
            metadata["total_size"] += added
        (out / WEIGHTS_INDEX).write_text(json.dumps(index, indent=2) + "\n", "utf-8")


def _rewrite_shard(path: Path, out: Path, repeats: Mapping[str, Repeat]) -> int:
    """Write one file and say how many bytes of tensors it has gained."""
    read_header(path)  # refuses what is not whole
    with path.open("rb") as source:
        length = int.from_bytes(source.read(8), "little")
        entries: dict[str, Any] = json.loads(source.read(length))
        header: dict[str, Any] = {}
        if "__metadata__" in entries:
            header["__metadata__"] = entries.pop("__metadata__")
        order = sorted(entries, key=lambda name: entries[name]["data_offsets"][0])
        end = 0
        for name in order:
            header[name], end = _entry(entries[name], repeats.get(name), end)
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("wb") as target:
            target.write(len(text).to_bytes(8, "little") + text)
            for name in order:
                start, stop = entries[name]["data_offsets"]
                source.seek(8 + length + start)
                _copy(source, target, stop - start, repeats.get(name))
    return end - sum(stop - start for start, stop in (e["data_offsets"] for e in entries.values()))


def _entry(old: Mapping[str, Any], repeat: Repeat | None, start: int) -> tuple[dict[str, Any], int]:
    """The header entry of a tensor that begins at ``start``, and where it ends."""
    shape, (first, last) = list(old["shape"]), old["data_offsets"]
    size = last - first
    if repeat is not None:
        assert shape[0] % repeat.pieces == 0, f"{shape} is not cut into {repeat.pieces}"
        shape[0] *= repeat.times
        size *= repeat.times
    return {**old, "shape": shape, "data_offsets": [start, start + size]}, start + size


def _copy(source: BinaryIO, target: BinaryIO, size: int, repeat: Repeat | None) -> None:
    if repeat is not None:
        for _ in range(repeat.pieces):
            piece = source.read(size // repeat.pieces)
            for _ in range(repeat.times):
                target.write(piece)
        return
    while size > 0:
        part = source.read(min(size, COPY_BYTES))
        assert part, "the file became shorter while it was read"
        target.write(part)
        size -= len(part)
