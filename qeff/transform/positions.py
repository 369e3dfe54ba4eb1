"""Positions row by row, for models that number their tokens by the length of the cache.

That length is one number for a whole batch, while here every row stands at a place of its own. Two
kinds of module are found by what their forward takes: tables of positions that are told how much is
cached, and decoders inside a model that does not hand positions on. Knows no class names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from qeff.transform.patch import patched_attr
from qeff.transform.trace import Trace

PAST = "past_key_values_length"
POSITIONS = "position_ids"
TYPES = "token_type_ids"  # a table of zeros as long as that of positions; zeros without it
COUNT = "create_position_ids_from_input_ids"  # for models that leave padding out of the count


@contextmanager
def position_hooks(model: nn.Module, trace: Trace) -> Iterator[None]:
    """Every module that numbers tokens takes the numbers of the step."""
    with ExitStack() as stack:
        for module in model.modules():
            takes = inspect.signature(module.forward).parameters
            if TYPES in module._buffers:
                stack.enter_context(_without_types(module))
            if PAST in takes and hasattr(module, COUNT):
                stack.enter_context(patched_attr(module, COUNT, _count(trace)))
            if PAST in takes and POSITIONS in takes:
                stack.enter_context(patched_attr(module, "forward", _table(module, trace)))
            elif {POSITIONS, "inputs_embeds", "past_key_values"} <= takes.keys():
                stack.enter_context(patched_attr(module, "forward", _decoder(module, trace)))
        yield


def num_positions(model: nn.Module) -> int | None:
    """How many tokens a table that starts after the padding's entry has room for."""
    module: Any
    for module in model.modules():
        table = getattr(module, "position_embeddings", None)
        if hasattr(module, COUNT) and isinstance(table, nn.Embedding):
            return table.num_embeddings - int(module.padding_idx) - 1
    return None


@contextmanager
def _without_types(module: nn.Module) -> Iterator[None]:
    table = module._buffers.pop(TYPES)
    try:
        yield
    finally:
        module._buffers[TYPES] = table


def _count(trace: Trace) -> Callable[..., Tensor]:
    def count(input_ids: Tensor, padding_idx: int, past_key_values_length: Any = 0) -> Tensor:
        # As for a token that is decoded alone: padding stays at its own entry.
        is_token = input_ids.ne(padding_idx).long()
        positions = input_ids * 0 if trace.step is None else trace.step.positions
        return (positions + 1) * is_token + padding_idx

    return count


def _table(module: nn.Module, trace: Trace) -> Callable[..., Any]:
    forward = module.forward
    form = inspect.signature(forward)

    def look_up(*args: Any, **kwargs: Any) -> Any:
        if trace.step is None:
            return forward(*args, **kwargs)
        known = form.bind(*args, **kwargs).arguments
        known[PAST] = 0
        known[POSITIONS] = trace.step.positions
        if hasattr(module, COUNT):
            known[POSITIONS] = getattr(module, COUNT)(known["input_ids"], module.padding_idx)
        found = forward(**known)
        # A table that expects the positions of a single row puts an axis before ours.
        return found[0] if found.dim() == 4 else found  # [B, S, D]

    return look_up


def _decoder(module: nn.Module, trace: Trace) -> Callable[..., Any]:
    forward = module.forward
    form = inspect.signature(forward)

    def run(*args: Any, **kwargs: Any) -> Any:
        if trace.step is None or form.bind(*args, **kwargs).arguments.get(POSITIONS) is not None:
            return forward(*args, **kwargs)
        return forward(*args, **{**kwargs, POSITIONS: trace.step.positions})

    return run
