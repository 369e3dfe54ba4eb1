"""Open a container: check everything first, then give bytes and memory-mapped weights.

Nothing of a container is used before its folder, manifest, file sizes, hashes and weight header
were found sound. Files that the manifest does not list are never opened.
"""

from __future__ import annotations

import json
import stat
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from qeff.container import verified
from qeff.container.format import (
    CERTIFICATE,
    HINT,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    WEIGHTS,
    hash_file,
)
from qeff.container.manifest import FileEntry, Manifest
from qeff.container.weights import HEADER_LEN_BYTES, Entry, header_len, parse_header
from qeff.core.errors import ContainerError
from qeff.core.formats import FORMATS
from qeff.core.spec import AXIS_BATCH, AXIS_CTX, AXIS_SEQ

Verify = Literal["fast", "full"]
MEMO_BYTES = 32 << 20  # larger files are hashed once and remembered by size and time


class Container:
    """An opened container. Weights are mapped when first asked for, and stay mapped."""

    def __init__(self, path: Path, manifest: Manifest, weights: Mapping[str, Entry]) -> None:
        self.path = path
        self.manifest = manifest
        self._entries = weights
        self._map: np.ndarray | None = None

    @classmethod
    def open(cls, path: str | Path, *, verify: Verify = "fast") -> Container:
        """Check and open the folder; ``full`` hashes even large files that were checked before."""
        folder = Path(path)
        if not folder.is_dir():
            raise ContainerError(f"there is no container at {folder}", HINT)
        try:
            manifest = Manifest.decode(_read_manifest(folder), str(folder / MANIFEST))
            for name, entry in manifest.files.items():
                _check_file(folder / name, entry, is_full=verify == "full")
            weights = _read_entries(folder) if WEIGHTS in manifest.files else {}
        except OSError as error:
            raise ContainerError(f"cannot read {folder}: {error.strerror}", HINT) from error
        _check_specialisations(manifest, str(folder / MANIFEST))
        return cls(folder, manifest, weights)

    def file(self, name: str) -> Path:
        """The path of a listed file."""
        if name not in self.manifest.files:
            raise ContainerError(f"{self.path} has no file {name!r}", HINT)
        return self.path / name

    def read_bytes(self, name: str) -> bytes:
        """The contents of a listed file."""
        try:
            return self.file(name).read_bytes()
        except OSError as error:
            raise ContainerError(
                f"cannot read {self.path / name}: {error.strerror}", HINT
            ) from error

    def text_files(self) -> dict[str, bytes]:
        """Every file that is neither program nor weights, by name."""
        kept = [
            name
            for name in self.manifest.files
            if name != WEIGHTS and not name.startswith("program.")
        ]
        return {name: self.read_bytes(name) for name in kept}

    @property
    def weight_names(self) -> list[str]:
        return list(self._entries)

    def weight(self, name: str) -> np.ndarray:
        """A tensor, read-only and mapped: its pages are read when touched."""
        if name not in self._entries:
            raise ContainerError(f"{self.path / WEIGHTS} has no tensor {name!r}", HINT)
        if self._map is None:
            self._map = np.memmap(self.file(WEIGHTS), np.uint8, "r")
        entry = self._entries[name]
        dtype = FORMATS[entry.format].dtype
        assert dtype is not None, f"{entry.format} is plain"
        return self._map[entry.start : entry.stop].view(dtype).reshape(entry.shape)

    def weight_place(self, name: str) -> tuple[Path, int, int]:
        """The file that holds a tensor, and where its bytes begin and end."""
        if name not in self._entries:
            raise ContainerError(f"{self.path / WEIGHTS} has no tensor {name!r}", HINT)
        entry = self._entries[name]
        return self.file(WEIGHTS), entry.start, entry.stop

    def describe(self) -> dict[str, Any]:
        """What ``inspect`` shows."""
        data = self.manifest.to_json()
        formats: Counter[str] = Counter()
        for entry in self._entries.values():
            formats[entry.format] += entry.stop - entry.start
        data["total_bytes"] = sum(entry.size for entry in self.manifest.files.values())
        data["weights"] = {
            "tensors": len(self._entries),
            "bytes_by_format": dict(sorted(formats.items())),
        }
        if CERTIFICATE in self.manifest.files:
            data["certificate"] = _load_json(self.read_bytes(CERTIFICATE), CERTIFICATE)
        return data


def _load_json(raw: bytes, name: str) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ContainerError(f"{name} is malformed: {error}", HINT) from error


def _read_manifest(folder: Path) -> bytes:
    path = folder / MANIFEST
    if not path.is_file() or path.is_symlink():
        raise ContainerError(f"{folder} is not a container: it has no {MANIFEST}", HINT)
    with path.open("rb") as file:
        raw = file.read(MAX_MANIFEST_BYTES + 1)
    if len(raw) > MAX_MANIFEST_BYTES:
        raise ContainerError(f"{path} is larger than {MAX_MANIFEST_BYTES} bytes", HINT)
    return raw


def _check_file(path: Path, entry: FileEntry, is_full: bool) -> None:
    """Size, kind and hash of one listed file."""
    try:
        found = path.lstat()
    except FileNotFoundError as error:
        raise ContainerError(f"{path} is missing", HINT) from error
    if not stat.S_ISREG(found.st_mode):
        raise ContainerError(f"{path} is not a plain file", HINT)
    if found.st_size != entry.size:
        raise ContainerError(f"{path} has {found.st_size} bytes instead of {entry.size}", HINT)
    is_large = entry.size > MEMO_BYTES
    if is_large and not is_full and verified.is_known(path, entry.sha256):
        return
    if hash_file(path) != entry.sha256:
        raise ContainerError(f"{path} was changed after it was written", HINT)
    if is_large:
        verified.remember(path, entry.sha256)


def _read_entries(folder: Path) -> dict[str, Entry]:
    path = folder / WEIGHTS
    with path.open("rb") as file:
        size = path.stat().st_size
        length = header_len(file.read(HEADER_LEN_BYTES), size, str(path))
        return parse_header(file.read(length), size, str(path))


def _check_specialisations(manifest: Manifest, where: str) -> None:
    """They must be there, be distinct, and agree with the options."""
    names = [item.name for item in manifest.specialisations]
    if not names or len(set(names)) != len(names):
        raise ContainerError(f"{where} has no specialisations, or two of one name", HINT)
    for item in manifest.specialisations:
        if not {AXIS_BATCH, AXIS_SEQ, AXIS_CTX} <= set(item.symbols):
            raise ContainerError(f"{where}: specialisation {item.name!r} lacks an axis", HINT)
        if item.symbols[AXIS_CTX] != manifest.options.ctx_len:
            raise ContainerError(f"{where}: specialisation {item.name!r} has another ctx_len", HINT)
