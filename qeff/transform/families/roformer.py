"""RoFormer: rotations of each row by its own positions.

The model looks its rotations up once and puts them before the axes of the queries as those of a
single row; here every row has its own, which the rotation takes as [batch, 1, seq, dim].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from qeff.transform.patch import patched_attr
from qeff.transform.trace import Trace

ROTATE = "apply_rotary_position_embeddings"


@contextmanager
def hooks(model: nn.Module, trace: Trace) -> Iterator[None]:
    """Every attention layer rotates row by row."""
    with ExitStack() as stack:
        for module in model.modules():
            if hasattr(module, ROTATE):
                rotate = _rotate(getattr(module, ROTATE))
                stack.enter_context(patched_attr(module, ROTATE, rotate))
        yield


def _rotate(original: Callable[..., Any]) -> Callable[..., Any]:
    def rotate(table: Tensor, *states: Tensor) -> Any:
        by_row = table[0, 0][:, None] if table.dim() == 5 else table  # [B, 1, S, D]
        return original(by_row, *states)

    return rotate
