"""Drafts of folders that other rooms write: made durable, then put in place at once.

How a folder appears whole or not at all is told in ``core/atomic_folder.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from qeff.core.atomic_folder import claim, disk_errors, put_in_place, release, sync


@contextmanager
def draft_folder(parent: Path) -> Iterator[Path]:
    """A hidden folder to write into; gone at the end unless ``publish`` gave it a name."""
    with disk_errors(parent):
        draft, lock = claim(parent / "draft")
        try:
            yield draft
        finally:
            release(draft, lock)


def publish(draft: Path, out: Path, is_good: Callable[[Path], bool]) -> Path:
    """Put a draft in place; a good folder that is there by then, another process's, is kept."""
    for path in draft.rglob("*"):
        if path.is_file():
            sync(path)
    put_in_place(draft, out, lambda: is_good(out))
    return out
