"""GIT: text alone, without an image before it.

The model lets the tokens of an image see one another and keeps groups of tokens for that, by places
within a step. Text belongs to no group, so that its mask is causal and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import masking_utils

from qeff.transform.patch import patched_attr
from qeff.transform.trace import Trace


@contextmanager
def hooks(model: nn.Module, trace: Trace) -> Iterator[None]:
    """Leave the groups of image tokens out of the mask."""
    with (
        patched_attr(masking_utils, "maybe_pad_block_sequence_ids", _unpadded),
        patched_attr(masking_utils, "blockwise_overlay", _no_groups),
    ):
        yield


def _unpadded(groups: Tensor, *sizes: Any) -> Tensor:
    return groups


def _no_groups(groups: Tensor) -> Callable[..., Tensor]:
    def overlay(batch: Any, head: Any, query: Tensor, key: Tensor) -> Tensor:
        return query.new_zeros((), dtype=torch.bool)

    return overlay
