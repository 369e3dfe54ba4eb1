"""Prepared: a decoder that is ready to be traced, with the origin of every weight.

Made by ``prepare``; an exporter traces ``module`` inside ``tracing()`` and asks ``reference()`` for
somebody independent to compare with. Importing this file registers the ops of this room in torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import nn

import qeff.transform.ops  # noqa: F401  (registers the torch ops)
from qeff.core.options import ExportOptions
from qeff.core.spec import ModelSpec
from qeff.core.tensor import LazyTensor
from qeff.transform.expression import (
    Concat,
    Expression,
    Leaf,
    Permute,
    Reshape,
    Slice,
    leaves,
)

__all__ = [
    "Concat",
    "Expression",
    "Leaf",
    "Permute",
    "Prepared",
    "Reference",
    "Reshape",
    "Slice",
    "leaves",
]


class Reference(Protocol):
    """An eager model, independent of the prepared one, and what to export for the comparison."""

    @property
    def method(self) -> str:
        """``weights``: the checkpoint itself. ``twin``: a shrunken model of the same kind."""

    @property
    def reason(self) -> str:
        """Why the checkpoint itself was not used, if it was not."""

    @property
    def prepared(self) -> Prepared | None:
        """What to export and run against it; None: what is being exported."""

    def logits(self, tokens: Sequence[int], steps: Sequence[int]) -> np.ndarray:
        """Logits [len(tokens), vocab] of one sequence, run with a cache in these steps."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A decoder whose caches are inputs and outputs."""

    module: nn.Module  # forward(input_ids, position_ids, caches[, batch_index])
    spec: ModelSpec
    options: ExportOptions
    weights: Mapping[str, Expression]  # by the name in ``module``; buffers of the checkpoint too
    tensors: Mapping[str, LazyTensor]  # the checkpoint's
    unused: tuple[str, ...]  # checkpoint tensors that no parameter reads
    source_name: str
    source_hash: str
    tracing: Callable[[], AbstractContextManager[None]]
    reference: Callable[[], AbstractContextManager[Reference]]
    notes: Mapping[str, int]  # what the hooks recognised
