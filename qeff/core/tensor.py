"""A checkpoint tensor that is not read until somebody asks for its values.

The build half passes these around instead of arrays: a plain tensor says where its bytes lie, so
that a graph can point at them; a packed one keeps its blocks, so that an engine can run them as
they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes ``offset`` to ``offset + length`` of a file."""

    path: Path
    offset: int
    length: int


class LazyTensor(Protocol):
    """Name, shape and format at once; values on demand, one tensor at a time."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def format(self) -> str:
        """A name of :data:`qeff.core.formats.FORMATS`."""

    @property
    def location(self) -> FileRange | None:
        """Where the stored bytes are, when they are this tensor's bytes unchanged."""

    def read(self) -> np.ndarray:
        """The values: in the stored dtype for a plain format, float32 for a packed one."""

    def raw(self) -> np.ndarray:
        """The stored blocks as uint8 [rows, bytes per row]; rows are all axes but the last."""


@runtime_checkable
class RowReader(Protocol):
    """A tensor that can give some of its rows without touching the others."""

    def read_rows(self, start: int, stop: int) -> np.ndarray:
        """The values of these rows, [rows, last axis], as ``read`` gives them."""

    def raw_rows(self, start: int, stop: int) -> np.ndarray:
        """The stored blocks of these rows, as ``raw`` gives them."""
