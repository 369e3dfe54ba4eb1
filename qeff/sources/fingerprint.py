"""Hashes files once and remembers the result by path, size, time and inode.

A second look at an unchanged checkpoint costs a stat per file. Knows files, not checkpoints.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from qeff.core.env import cache_root
from qeff.core.errors import SourceError
from qeff.core.progress import log

_NUM_THREADS = 2
# A file changed again within one tick of its clock would look unchanged, so that very
# fresh files are not remembered. A time of whole seconds shows a coarse clock.
_FINE_TICK_NS = 50_000_000
_COARSE_TICK_NS = 2_000_000_000


def hash_files(named: Mapping[str, Path]) -> str:
    """SHA-256 over names and bytes of files; only files that changed are read."""
    memo_path = cache_root() / "hashes.json"
    memo = _read_memo(memo_path)
    paths = sorted({_real(path) for path in named.values()})
    stamps = {path: _stamp(path) for path in paths}
    known = {
        path: memo[path]["sha256"]
        for path in paths
        if path in memo and memo[path]["stamp"] == stamps[path]
    }
    stale = [path for path in paths if path not in known]
    if stale:
        with ThreadPoolExecutor(_NUM_THREADS) as pool:
            known.update(zip(stale, pool.map(hash_file, stale), strict=True))
        _remember(memo_path, {path: (stamps[path], known[path]) for path in stale})
    whole = hashlib.sha256()
    for name, path in sorted(named.items()):
        whole.update(json.dumps([name, known[_real(path)]]).encode())
    return whole.hexdigest()


def hash_file(path: str | Path) -> str:
    """SHA-256 of one file, read in pieces."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error


def _real(path: Path) -> str:
    return os.path.realpath(path)


def _stamp(path: str) -> list[int]:
    try:
        stat = os.stat(path)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]


def _is_settled(stamp: list[int]) -> bool:
    tick = _FINE_TICK_NS if stamp[1] % 1_000_000_000 else _COARSE_TICK_NS
    return time.time_ns() - stamp[1] > tick


def _read_memo(path: Path) -> dict[str, Any]:
    """The remembered hashes; a memo that is missing or damaged is an empty one."""
    try:
        memo = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(memo, dict):
        return {}
    return {key: item for key, item in memo.items() if _is_entry(item)}


def _is_entry(item: Any) -> bool:
    return (
        isinstance(item, dict)
        and isinstance(item.get("sha256"), str)
        and len(item["sha256"]) == 64
        and isinstance(item.get("stamp"), list)
    )


def _remember(path: Path, fresh: Mapping[str, tuple[list[int], str]]) -> None:
    """Add hashes to the memo, written beside and renamed: a reader never sees half of it."""
    settled = {
        name: {"stamp": stamp, "sha256": digest}
        for name, (stamp, digest) in fresh.items()
        if _is_settled(stamp)
    }
    if not settled:
        return
    memo = {name: item for name, item in _read_memo(path).items() if os.path.exists(name)} | settled
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=".hashes-", suffix=".tmp", delete=False
        ) as file:
            json.dump(memo, file, indent=0, sort_keys=True)
        os.replace(file.name, path)
    except OSError as error:
        # The memo only saves time; a cache that cannot be written must not stop the work.
        _warn_once(path, error.strerror)


@functools.cache
def _warn_once(path: Path, reason: str) -> None:
    log.warning("hashes could not be remembered in %s: %s", path, reason)
