"""The manifest: what a container is, as dataclasses and as JSON.

Reading is strict: a field that is missing, of another type or unknown is an error that names it.
Holds no absolute path and no time, so that equal inputs give equal bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from qeff.container.format import (
    HINT,
    KIND,
    MANIFEST,
    MAX_FILES,
    VERSION,
    encode_json,
    is_file_name,
)
from qeff.core.errors import ContainerError, UsageError
from qeff.core.options import CompileOptions
from qeff.core.spec import CacheLayer, ModelSpec


@dataclass(frozen=True, slots=True)
class Port:
    """A named input or output; a size is a number or the name of a symbolic axis."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Specialisation:
    """Fixed values for the symbolic axes, by a name such as ``Prefill``."""

    name: str
    symbols: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class FileEntry:
    """What a listed file must be."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything a reader needs to know before it opens another file."""

    model: ModelSpec
    target: str
    precision: Mapping[str, str]  # by weight class; ``asked`` is what the user named
    options: CompileOptions
    specialisations: tuple[Specialisation, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    provenance: Mapping[str, Any]
    files: Mapping[str, FileEntry]

    def to_json(self) -> dict[str, Any]:
        """The manifest as plain values, without its digest."""
        return {
            "kind": KIND,
            "version": VERSION,
            "model": self.model.to_json(),
            "target": self.target,
            "precision": dict(self.precision),
            "options": self.options.to_json(),
            "specialisations": [
                {"name": item.name, "symbols": dict(item.symbols)} for item in self.specialisations
            ],
            "signature": {
                "inputs": [_port_json(port) for port in self.inputs],
                "outputs": [_port_json(port) for port in self.outputs],
            },
            "provenance": dict(self.provenance),
            "files": {
                name: {"size": entry.size, "sha256": entry.sha256}
                for name, entry in self.files.items()
            },
        }

    def encode(self) -> bytes:
        """The bytes of manifest.json: canonical JSON with its own digest in it."""
        data = self.to_json()
        return encode_json(data | {"digest": _digest(data)})

    @classmethod
    def decode(cls, raw: bytes, where: str = MANIFEST) -> Manifest:
        """Read and check manifest.json; anything wrong is a ContainerError that names the file."""
        try:
            data = json.loads(raw)
            if not isinstance(data, dict) or data.get("kind") != KIND:
                raise ContainerError(f"{where} is not the manifest of a container", HINT)
            if data.get("version") != VERSION:
                raise ContainerError(
                    f"{where} has version {data.get('version')!r}, this release reads {VERSION}",
                    HINT,
                )
            if encode_json(data) != raw or data.pop("digest", None) != _digest(data):
                raise ContainerError(f"{where} was changed after it was written", HINT)
            return _parse(data)
        except (ValueError, KeyError, TypeError, RecursionError, UsageError) as error:
            text = error.what if isinstance(error, UsageError) else str(error) or repr(error)
            raise ContainerError(f"{where} is malformed: {text}", HINT) from error


def _digest(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(encode_json(data)).hexdigest()


def _port_json(port: Port) -> dict[str, Any]:
    return {"name": port.name, "dtype": port.dtype, "shape": list(port.shape)}


def _parse(data: dict[str, Any]) -> Manifest:
    _exactly(
        data,
        {*_names(Manifest), "kind", "version", "signature"} - {"inputs", "outputs"},
        "manifest",
    )
    _exactly(data["signature"], {"inputs", "outputs"}, "signature")
    options = _mapping(data["options"], "options")
    _exactly(options, _names(CompileOptions), "options")
    _mapping(options["vendor"], "vendor")
    manifest = Manifest(
        model=_model(data["model"]),
        target=_text(data["target"], "target"),
        precision={k: _text(v, k) for k, v in _mapping(data["precision"], "precision").items()},
        options=CompileOptions.from_json(options),
        specialisations=tuple(_specialisation(item) for item in _list(data["specialisations"])),
        inputs=tuple(_port(item) for item in _list(data["signature"]["inputs"])),
        outputs=tuple(_port(item) for item in _list(data["signature"]["outputs"])),
        provenance=_mapping(data["provenance"], "provenance"),
        files={name: _file(name, item) for name, item in _mapping(data["files"], "files").items()},
    )
    if manifest.target != manifest.options.target:
        raise ValueError(f"target {manifest.target!r} is not that of the options")
    if len(manifest.files) > MAX_FILES:
        raise ValueError(f"{len(manifest.files)} files are listed")
    return manifest


def _model(data: Any) -> ModelSpec:
    _exactly(data, _names(ModelSpec), "model")
    for name in ("name", "architecture", "model_type"):
        _text(data[name], name)
    for name in ("vocab_size", "num_layers", "num_params"):
        _count(data[name], name)
    if data["max_positions"] is not None:
        _count(data["max_positions"], "max_positions")
    for layer in _list(data["caches"]):
        _exactly(layer, _names(CacheLayer), "cache layer")
        for name, value in layer.items():
            _count(value, name)
    return ModelSpec.from_json(data)


def _specialisation(item: Any) -> Specialisation:
    _exactly(item, {"name", "symbols"}, "specialisation")
    symbols = _mapping(item["symbols"], "symbols")
    return Specialisation(
        _text(item["name"], "name"), {key: _count(value, key) for key, value in symbols.items()}
    )


def _port(item: Any) -> Port:
    _exactly(item, {"name", "dtype", "shape"}, "signature entry")
    shape = tuple(
        size if isinstance(size, str) else _count(size, "shape") for size in _list(item["shape"])
    )
    return Port(_text(item["name"], "name"), _text(item["dtype"], "dtype"), shape)


def _file(name: str, item: Any) -> FileEntry:
    if not is_file_name(name) or name == MANIFEST:
        raise ValueError(f"a file may not be called {name!r}")
    _exactly(item, {"size", "sha256"}, name)
    digest = _text(item["sha256"], "sha256")
    if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise ValueError(f"{name} has a malformed hash")
    return FileEntry(_count(item["size"], "size"), digest)


def _names(kind: type) -> set[str]:
    return {field.name for field in fields(kind)}


def _exactly(data: Any, names: set[str], where: str) -> None:
    found = set(_mapping(data, where))
    if found != names:
        missing, unknown = sorted(names - found), sorted(found - names)
        raise ValueError(f"{where} lacks {missing} or has unknown {unknown}")


def _mapping(data: Any, where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ValueError(f"{where} is not an object")
    return data


def _list(data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise ValueError(f"{data!r:.60} is not a list")
    return data


def _text(data: Any, where: str) -> str:
    if not isinstance(data, str):
        raise ValueError(f"{where} is not a text")
    return data


def _count(data: Any, where: str) -> int:
    if type(data) is not int or data < 0:
        raise ValueError(f"{where} is not a whole number")
    return data
