"""Write a container so that it is there whole or not at all.

Everything goes into an unfinished folder (``core/atomic_folder.py``), is hashed on the way, and is
put in place last. A sound container that is equal is kept; a folder that is no container is left
alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator, Sequence
from io import FileIO
from pathlib import Path
from types import TracebackType

import numpy as np

from qeff.container import verified
from qeff.container.format import (
    CERTIFICATE,
    CHUNK_BYTES,
    KIND,
    MANIFEST,
    SPECIALIZATIONS,
    WEIGHTS,
    is_file_name,
)
from qeff.container.manifest import FileEntry, Manifest
from qeff.container.reader import MEMO_BYTES, Container
from qeff.container.weights import ArrayStream, Layout, WeightGroup, lay_out
from qeff.core.atomic_folder import claim, disk_errors, place_of, put_in_place, release
from qeff.core.errors import ContainerError, UsageError
from qeff.core.progress import Event, Progress, silent

_OURS = (MANIFEST, CERTIFICATE, SPECIALIZATIONS)
# Other projects have a manifest.json too: beside one that is damaged, only these are replaced.
_MEMBER = re.compile(
    r"(manifest|certificate|specializations|mdp_ts_\d+|tokenizer|tokenizer_config|generation_config)"
    r"\.json|custom_io\.yaml|chat_template\.jinja|weights\.safetensors|program\.\w+"
)


class ContainerWriter:
    """Files in, a folder out; a context manager that leaves nothing without ``commit``."""

    def __init__(self, out: Path) -> None:
        self.out = place_of(out)
        self._files: dict[str, FileEntry] = {}
        with disk_errors(self.out):
            check_replaceable(self.out)
            self._folder, self._lock = claim(self.out)

    def __enter__(self) -> ContainerWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        release(self._folder, self._lock)

    @property
    def files(self) -> dict[str, FileEntry]:
        """Size and hash of what was written so far."""
        return dict(self._files)

    def write_bytes(self, name: str, data: bytes) -> None:
        """Write one small file."""
        with self._create(name) as sink:
            sink.write(data)

    def write_weights(self, groups: Sequence[WeightGroup], progress: Progress = silent) -> Layout:
        """Stream the weights file: header first, then one group of tensors at a time."""
        layout = lay_out(spec for group in groups for spec in group.specs)
        starts = {entry.name: entry.start for entry in layout.entries}
        with self._create(WEIGHTS) as sink:
            sink.write(layout.header)
            for group in groups:
                arrays = group.produce()
                assert len(arrays) == len(group.specs), f"{group.specs[0].name}: wrong count"
                for spec, array in zip(group.specs, arrays, strict=True):
                    assert array.shape == spec.shape and array.dtype == spec.dtype, (
                        f"{spec.name}: {array.dtype}{array.shape}, not {spec.dtype}{spec.shape}"
                    )
                    sink.write(bytes(starts[spec.name] - sink.num_bytes))
                    for piece in _pieces(array):
                        sink.write(piece)
                        progress(Event("pack", sink.num_bytes, layout.num_bytes))
                    assert sink.num_bytes == starts[spec.name] + spec.num_bytes, (
                        f"{spec.name} was streamed with another length than its shape says"
                    )
                del arrays
        return layout

    @contextlib.contextmanager
    def preview(self, manifest: Manifest) -> Iterator[Path]:
        """The draft as a container that can be opened, before it is finished."""
        path = self._folder / MANIFEST
        with disk_errors(self.out):
            path.write_bytes(manifest.encode())
        try:
            yield self._folder
        finally:
            path.unlink()

    def commit(self, manifest: Manifest) -> Path:
        """Flush, write the manifest and rename into place; an equal sound container is kept."""
        assert dict(manifest.files) == self._files, (
            "the manifest lists other files than were written"
        )
        self.write_bytes(MANIFEST, manifest.encode())
        with disk_errors(self.out):
            put_in_place(self._folder, self.out, lambda: _is_kept(self._folder, self.out))
        for name, entry in manifest.files.items():
            if entry.size > MEMO_BYTES:
                verified.remember(self.out / name, entry.sha256)
        return self.out

    @contextlib.contextmanager
    def _create(self, name: str) -> Iterator[_Sink]:
        assert is_file_name(name) and name not in self._files, f"bad or repeated file name {name!r}"
        with disk_errors(self.out):
            # Unbuffered: a full disk shows at the write, and closing has nothing left to fail on.
            file = (self._folder / name).open("xb", buffering=0)
        with file:
            sink = _Sink(file, self.out)
            yield sink
            with disk_errors(self.out):
                os.fsync(file.fileno())
                if sink.num_bytes > MEMO_BYTES and hasattr(os, "posix_fadvise"):
                    # What was written in pieces is cached in small pages. Read anew, it comes in
                    # large ones where the system has them, which engines read faster.
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if name != MANIFEST:
            self._files[name] = FileEntry(sink.num_bytes, sink.digest.hexdigest())


class _Sink:
    """A file that counts and hashes what is written, and turns a full disk into a clear error."""

    def __init__(self, file: FileIO, out: Path) -> None:
        self._file = file
        self._out = out
        self.num_bytes = 0
        self.digest = hashlib.sha256()

    def write(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        with disk_errors(self._out):
            while rest:
                rest = rest[self._file.write(rest) :]
        self.digest.update(data)
        self.num_bytes += len(data)


def check_replaceable(out: Path) -> None:
    """What is there must be nothing, or a container, sound or damaged; else it is left alone."""
    try:
        items = list(out.iterdir())
    except FileNotFoundError:
        return
    except NotADirectoryError:
        items = [out] if out.exists() else []  # or a folder above it is a file
    hint = "name another folder, or remove this one"
    if items and not any(item.name in _OURS for item in items):
        raise UsageError(f"{out} exists and is not a container", hint)
    known = _listed(out)
    for item in items:
        if item.is_dir() or not (item.name in known or _MEMBER.fullmatch(item.name)):
            raise UsageError(f"{out} holds {item.name}, which is no part of a container", hint)


def _listed(out: Path) -> Collection[str]:
    """The files that a container's manifest names; none where it is damaged or not ours."""
    try:
        data = json.loads((out / MANIFEST).read_bytes())
        return list(data["files"]) if data["kind"] == KIND else ()
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return ()


def _is_kept(folder: Path, out: Path) -> bool:
    """Whether an equal sound container is there already."""
    check_replaceable(out)
    try:
        if (out / MANIFEST).read_bytes() != (folder / MANIFEST).read_bytes():
            return False
        Container.open(out)
    except (ContainerError, OSError):
        return False
    return True


def _pieces(array: np.ndarray | ArrayStream) -> Iterator[memoryview]:
    """The bytes of an array in row order, some megabytes at a time, so no view is copied whole."""
    if isinstance(array, ArrayStream):
        for part in array.pieces:
            yield from _pieces(part)
        return
    if array.ndim == 0 or array.nbytes <= CHUNK_BYTES:
        if array.nbytes:
            yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        return
    row_bytes = array.nbytes // array.shape[0]
    step = max(1, CHUNK_BYTES // row_bytes)
    for start in range(0, array.shape[0], step):
        part = array[start : start + step]
        if step == 1 and row_bytes > CHUNK_BYTES:
            yield from _pieces(part[0])
        else:
            yield np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
