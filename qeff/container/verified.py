"""A memory of large files whose hash was found right, so that they are not read at every start.

A note says: this path, with this size, times and inode, had this hash. Any write to the file
changes them, and the hash is taken afresh. Notes are a convenience; one that cannot be read or
written is no error.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from pathlib import Path

from qeff.core.env import cache_root
from qeff.core.progress import log


def is_known(path: Path, sha256: str) -> bool:
    """Whether the file, as it is, was found to have this hash before."""
    try:
        return bool(json.loads(_note(path).read_bytes()) == _state(path, sha256))
    except (OSError, ValueError):
        return False


def remember(path: Path, sha256: str) -> None:
    """Note that the file, as it is, has this hash."""
    note = _note(path)
    draft = note.with_suffix(f".{secrets.token_hex(4)}")
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(_state(path, sha256)))
        draft.replace(note)
    except OSError as error:
        log.debug("no note that %s is sound: %s", path, error)


def _note(path: Path) -> Path:
    key = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]
    return cache_root() / "verified" / f"{key}.json"


def _state(path: Path, sha256: str) -> list[int | str]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, sha256]
