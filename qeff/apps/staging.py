"""Folders that appear whole or not at all: written beside, flushed, then renamed into place.

A draft is locked while its process lives; one that a killed process left is swept away by the next
writer.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from qeff.container.writer import SUFFIX, sweep
from qeff.core.errors import ResourceError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def draft_folder(parent: Path) -> Iterator[Path]:
    """A hidden folder to write into; gone at the end unless ``publish`` gave it a name."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        sweep(parent)
        draft = parent / f".{os.getpid()}-{secrets.token_hex(6)}{SUFFIX}"
        draft.mkdir()
        lock = os.open(draft, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield draft
        finally:
            shutil.rmtree(draft, ignore_errors=True)
            os.close(lock)
    except OSError as error:
        if error.errno in _FULL:
            what = f"the disk is full: {parent} could not be written"
        else:
            what = f"cannot write {parent}: {error.strerror or error}"
        hint = "free some space, or set QEFF_HOME to a folder on another disk"
        raise ResourceError(what, hint) from error


def publish(draft: Path, out: Path, is_good: Callable[[Path], bool]) -> Path:
    """Put a draft in place; a good folder that is there by then, another process's, is kept."""
    _flush(draft)
    while True:
        try:
            draft.rename(out)
            return out
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        if is_good(out):
            return out
        grave = out.with_name(f".{secrets.token_hex(6)}{SUFFIX}")
        try:
            out.rename(grave)
        except FileNotFoundError:
            continue  # another process took the damaged one away
        shutil.rmtree(grave, ignore_errors=True)


def _flush(folder: Path) -> None:
    """Make every plain file durable before the folder gets its name."""
    for path in [*(p for p in folder.rglob("*") if p.is_file()), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
