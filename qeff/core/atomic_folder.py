"""Folders that appear whole or not at all: written beside, flushed, then renamed into place.

An unfinished folder is hidden and locked while its process lives; one without a living owner is
swept away by the next writer. Several processes may make the same folder at once: all succeed, and
one result stays. Knows nothing of what the folders hold.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from qeff.core.errors import ResourceError

SUFFIX = ".qeff-unfinished"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)


def place_of(out: Path) -> Path:
    """Where a folder is to appear: a symbolic link stays, and what it points to is meant."""
    return out.resolve() if out.is_symlink() else out.absolute()


def claim(out: Path) -> tuple[Path, int]:
    """A locked hidden folder beside ``out``, and its lock; the dead ones there are swept away."""
    out.parent.mkdir(parents=True, exist_ok=True)
    sweep(out.parent)
    while True:
        folder = out.with_name(f".{out.name}.{os.getpid()}-{secrets.token_hex(4)}{SUFFIX}")
        folder.mkdir()
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # another process swept it away before it was locked
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if folder.exists():
                return folder, lock
        os.close(lock)


def release(folder: Path, lock: int) -> None:
    """Remove what is left of a claimed folder; nothing, when it was put in place."""
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


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


def put_in_place(folder: Path, out: Path, is_kept: Callable[[], bool]) -> None:
    """Rename ``folder`` to ``out``; what is there by then stays if ``is_kept`` says so."""
    sync(folder)
    while True:
        try:
            folder.rename(out)
            break
        except OSError as error:
            if error.errno not in _OCCUPIED:
                raise
        if is_kept():
            return
        # Another process may do the same at this moment; whoever finds it gone just tries again.
        grave = out.with_name(f".{out.name}.{secrets.token_hex(4)}{SUFFIX}")
        with contextlib.suppress(FileNotFoundError):
            out.rename(grave)
            shutil.rmtree(grave, ignore_errors=True)
    sync(out.parent)


def sync(path: Path) -> None:
    """Flush a file, or a folder's list of names, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def disk_errors(out: Path) -> Iterator[None]:
    """Turn what the disk refuses into one sentence and a hint."""
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
