"""Set something for as long as a context lasts, and put back what was there.

Every hook of this room goes through these two, so that nothing of it outlives a trace.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

_ABSENT = object()


@contextmanager
def patched_attr(owner: Any, name: str, value: Any) -> Iterator[None]:
    """``owner.name = value`` until the context ends."""
    before = vars(owner).get(name, _ABSENT)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


@contextmanager
def patched_item(table: MutableMapping[Any, Any], key: Any, value: Any) -> Iterator[None]:
    """``table[key] = value`` until the context ends."""
    before = table.get(key, _ABSENT)
    table[key] = value
    try:
        yield
    finally:
        if before is _ABSENT:
            del table[key]
        else:
            table[key] = before
