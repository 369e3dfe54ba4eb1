"""Write a container so that it is there whole or not at all.

Everything goes into a hidden folder beside the target, is flushed to disk, and is renamed into
place last. The hidden folder is locked while its process lives; one without a living owner is
swept away by a later run. Two processes that write the same container both succeed, and one result
stays.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path
from types import TracebackType

import numpy as np

from qeff.container import verified
from qeff.container.format import (
    CERTIFICATE,
    CHUNK_BYTES,
    MANIFEST,
    SPECIALIZATIONS,
    WEIGHTS,
    is_file_name,
)
from qeff.container.manifest import FileEntry, Manifest
from qeff.container.reader import MEMO_BYTES, Container
from qeff.container.weights import Layout, WeightGroup, lay_out
from qeff.core.errors import ContainerError, ResourceError, UsageError
from qeff.core.progress import Event, Progress, silent

SUFFIX = ".qeff-unfinished"
_OURS = (MANIFEST, CERTIFICATE, SPECIALIZATIONS)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ContainerWriter:
    """Files in, a folder out; a context manager that leaves nothing without ``commit``."""

    def __init__(self, out: Path) -> None:
        self.out = out.absolute()
        self._files: dict[str, FileEntry] = {}
        with _disk_errors(self.out):
            self.out.parent.mkdir(parents=True, exist_ok=True)
            sweep(self.out.parent)
            _check_replaceable(self.out)
            self._folder, self._lock = _claim(self.out)

    def __enter__(self) -> ContainerWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._lock)

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
                del arrays
        return layout

    def commit(self, manifest: Manifest) -> Path:
        """Flush, write the manifest and rename into place; an equal sound container is kept."""
        assert dict(manifest.files) == self._files, (
            "the manifest lists other files than were written"
        )
        self.write_bytes(MANIFEST, manifest.encode())
        with _disk_errors(self.out):
            _sync_folder(self._folder)
            _put_in_place(self._folder, self.out)
            _sync_folder(self.out.parent)
        for name, entry in manifest.files.items():
            if entry.size > MEMO_BYTES:
                verified.remember(self.out / name, entry.sha256)
        return self.out

    @contextlib.contextmanager
    def _create(self, name: str) -> Iterator[_Sink]:
        assert is_file_name(name) and name not in self._files, f"bad or repeated file name {name!r}"
        with _disk_errors(self.out):
            # Unbuffered: a full disk shows at the write, and closing has nothing left to fail on.
            file = (self._folder / name).open("xb", buffering=0)
        with file:
            sink = _Sink(file, self.out)
            yield sink
            with _disk_errors(self.out):
                os.fsync(file.fileno())
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
        with _disk_errors(self._out):
            while rest:
                rest = rest[self._file.write(rest) :]
        self.digest.update(data)
        self.num_bytes += len(data)


def sweep(parent: Path) -> None:
    """Remove the unfinished folders whose processes have died."""
    for folder in parent.glob(f".*{SUFFIX}"):
        with contextlib.suppress(OSError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _claim(out: Path) -> tuple[Path, int]:
    """Make a locked hidden folder beside ``out``; again, if a sweep took it before the lock."""
    while True:
        folder = out.with_name(f".{out.name}.{os.getpid()}-{secrets.token_hex(4)}{SUFFIX}")
        folder.mkdir()
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if folder.exists():
                return folder, lock
        os.close(lock)


def _put_in_place(folder: Path, out: Path) -> None:
    """Rename ``folder`` to ``out``, unless an equal sound container is there already."""
    while True:
        try:
            folder.rename(out)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        _check_replaceable(out)
        if _is_equal(folder, out):
            return
        # Another process may do the same at this moment; whoever finds it gone just tries again.
        grave = out.with_name(f".{out.name}.{secrets.token_hex(4)}{SUFFIX}")
        with contextlib.suppress(FileNotFoundError):
            out.rename(grave)
            shutil.rmtree(grave, ignore_errors=True)


def _check_replaceable(out: Path) -> None:
    """What is there must be nothing, or a container, sound or damaged; else it is left alone."""
    try:
        items = list(out.iterdir())
    except FileNotFoundError:
        return
    except NotADirectoryError:
        items = [out]
    is_ours = any(item.name in _OURS for item in items) and not any(item.is_dir() for item in items)
    if items and not is_ours:
        raise UsageError(
            f"{out} exists and is not a container", "name another folder, or remove this one"
        )


def _is_equal(folder: Path, out: Path) -> bool:
    try:
        if (out / MANIFEST).read_bytes() != (folder / MANIFEST).read_bytes():
            return False
        Container.open(out)
    except (ContainerError, OSError):
        return False
    return True


def _pieces(array: np.ndarray) -> Iterator[memoryview]:
    """The bytes of an array in row order, some megabytes at a time, so no view is copied whole."""
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


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _disk_errors(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise ResourceError(
                f"the disk is full: {out} could not be written",
                "free some space, or set QEFF_HOME to a folder on another disk",
            ) from error
        raise ResourceError(
            f"cannot write {out}: {error.strerror or error}",
            "check that the folder may be written, or set QEFF_HOME to another one",
        ) from error
