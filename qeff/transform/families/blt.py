"""BLT: refused, since it groups bytes into patches whose number depends on their values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from qeff.core.errors import UnsupportedModel
from qeff.transform.trace import Trace


@contextmanager
def hooks(model: nn.Module, trace: Trace) -> Iterator[None]:
    """Say why the model cannot be exported."""
    raise UnsupportedModel(
        f"{type(model).__name__} groups bytes into patches, as many as their values ask for",
        "sizes that depend on values cannot be drawn as one graph",
    )
    yield
