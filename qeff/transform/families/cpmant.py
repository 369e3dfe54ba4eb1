"""CPM-Ant: refused, since its prompt is read in both directions and sent whole at every step."""

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
        f"{type(model).__name__} lets every token of a text see all others, also later ones",
        "its keys and values change as a text grows, so that a cache cannot hold them",
    )
    yield
